"""The commands that make and show long-term identities."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedopal_secure.cli.common import errors


def new(
    name: Annotated[str, typer.Argument(help="Whose key it is; a name for people, which is not sent anywhere.")],
    folder: Annotated[Path, typer.Option(help="Where the private key goes.")] = Path(),
) -> None:
    """Make a long-term Ed25519 identity: NAME.key (private, readable by you only) and a line for policies."""
    with errors():
        from fedopal_secure.federation.keys import create_key

        path, identity = create_key(folder, name)
        print(f"{path} holds the private key: keep it, and show it to no one", file=sys.stderr)
        print(f'{json.dumps(name)} = "{identity.hex()}"')


def show(path: Annotated[Path, typer.Argument(help="A file that `keys new` wrote.")]) -> None:
    """Print the public half of a key, as the line for policies."""
    with errors():
        from fedopal_secure.federation.keys import load_key

        print(f'{json.dumps(path.stem)} = "{load_key(path).identity.hex()}"')
