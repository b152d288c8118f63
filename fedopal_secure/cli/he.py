"""The commands of a key authority, which holds the key of encrypted sums: he keygen, he decrypt, he show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedopal_secure.cli.common import errors, new_file, read_file
from fedopal_secure.core.errors import InputError
from fedopal_secure.federation.config import PolicyConfig, load_toml, parse_config


def keygen(
    folder: Annotated[Path, typer.Argument(help="Where the keys go; a new folder.")],
    key: Annotated[Path, typer.Option(help="The authority's identity, a file that `keys new` wrote.")],
    protocol: Annotated[
        str, typer.Option(help="bfv (exact) or ckks (rounded to exact); see docs/protocols.md.")
    ] = "bfv",
    masked: Annotated[
        bool, typer.Option(help="With bfv: for sums that are masked, too. Such keys serve no others.")
    ] = False,
) -> None:
    """Make the keys of encrypted sums: FOLDER/public.context to publish, FOLDER/secret.keys readable by you only.

    Prints the line for the clients' policies, by which they pin the public context.
    """
    with errors():
        from fedopal_secure.core.params import ENCRYPTED
        from fedopal_secure.federation.keys import load_key
        from fedopal_secure.federation.secure_sum import protocol_named
        from fedopal_secure.federation.stored_authority import PUBLIC, create_authority
        from fedopal_secure.he.messages import public_context_hash

        named = protocol_named(protocol, masked)
        if named not in ENCRYPTED:
            raise InputError(f"--protocol {protocol}: nothing is encrypted in it; take bfv or ckks")
        context = create_authority(folder, named, load_key(key))
        print(f"give {folder / PUBLIC} to the server and to every client; show the rest to no one", file=sys.stderr)
        print(f'public_context = "{public_context_hash(context).hex()}"')


def decrypt(
    folder: Annotated[Path, typer.Argument(help="A folder that `he keygen` made.")],
    request: Annotated[Path, typer.Argument(help="The server's request.")],
    key: Annotated[Path, typer.Option(help="The authority's identity, a file that `keys new` wrote.")],
    policy: Annotated[
        Path, typer.Option(help="Whose sums are opened: identities, servers, corrupt, min_survivors (policy.toml).")
    ],
    out: Annotated[Path, typer.Option(help="Where the answer to the server goes.")],
) -> None:
    """Open the total of one session, once: check who uploaded, decrypt, round, sign."""
    with errors():
        from fedopal_secure.federation.keys import load_key
        from fedopal_secure.federation.stored_authority import StoredAuthority, authority_policy

        rules = parse_config(PolicyConfig, load_toml(policy), str(policy))
        authority = StoredAuthority(folder, load_key(key), authority_policy(rules, str(policy)))
        asked = read_file(request)
        # Before the session is used up: an answer that cannot be written would be lost with it.
        with new_file(out) as file:
            file.write(authority.open_total(asked))
        for session, error in authority.largest_error.items():
            print(f"opened the total of session {session.hex()[:12]}; largest error before rounding {error:.2g}")


def show(path: Annotated[Path, typer.Argument(help="A public context, or a folder that `he keygen` made.")]) -> None:
    """Check a public context and print its parameters, the authority that signed it, and the line for policies."""
    with errors():
        from fedopal_secure.federation.stored_authority import load_public_context
        from fedopal_secure.he.messages import public_context_hash
        from fedopal_secure.he.parameters import SECURE_BITS

        context = load_public_context(path)
        p = context.parameters
        bits = f"{p.modulus_bits} of {SECURE_BITS[p.degree]} bits at 128-bit security"
        print(f"for {context.protocol}: {p.scheme} of degree {p.degree}, {bits}")
        print(f"signed by {context.authority.hex()}")
        print(f'public_context = "{public_context_hash(context).hex()}"')
