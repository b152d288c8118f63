"""A key authority on disk: a folder with its public context, its secret keys, and a mark for each session it opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fedopal_secure.core.codec import encode
from fedopal_secure.core.errors import InputError
from fedopal_secure.core.identity import SigningKey
from fedopal_secure.core.policy import Membership
from fedopal_secure.federation.config import PolicyConfig
from fedopal_secure.federation.keys import write_private
from fedopal_secure.he.authority import AuthorityPolicy, KeyAuthority, SecretKeys, generate
from fedopal_secure.he.context import read_public_context
from fedopal_secure.he.messages import PublicContext

PUBLIC: Final = "public.context"
_SECRET: Final = "secret.keys"
_OPENED: Final = "opened"


def create_authority(folder: Path, protocol: str, key: SigningKey) -> PublicContext:
    """Make keys for one protocol and leave them in a folder, the secret ones with mode 0600.

    Raises InputError rather than overwrite.
    """
    if (folder / _SECRET).exists() or (folder / PUBLIC).exists():
        raise InputError(f"{folder} holds keys already: choose another folder, keys are never overwritten")
    secrets = generate(protocol, key)
    write_private(folder / _SECRET, secrets.to_bytes())
    (folder / _OPENED).mkdir(exist_ok=True)
    (folder / PUBLIC).write_bytes(encode(secrets.context))
    return secrets.context


def load_public_context(path: Path) -> PublicContext:
    """Read and check a public context, from its file or an authority's folder; raises InputError."""
    return read_public_context(_read(path / PUBLIC if path.is_dir() else path))


class StoredAuthority(KeyAuthority):
    """The authority of a folder that `create_authority` made.

    Each session leaves an empty file `opened/SESSION` before it is decrypted; whoever deletes it, or puts back an older
    copy of the folder, opens the session again (KEY-AUTHORITY-MEMORY).
    """

    def __init__(self, folder: Path, key: SigningKey, policy: AuthorityPolicy) -> None:
        secrets = SecretKeys.from_bytes(_read(folder / _SECRET), load_public_context(folder))
        super().__init__(key, secrets, policy)
        self._folder = folder / _OPENED
        if not self._folder.is_dir():
            raise InputError(f"{self._folder} is missing, and with it the sessions that were opened: put it back")

    def use_up(self, session: bytes) -> bool:
        """See `KeyAuthority.use_up`; two processes cannot both be the first."""
        try:
            descriptor = os.open(self._folder / session.hex(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        os.fsync(descriptor)
        os.close(descriptor)
        return True


def authority_policy(config: PolicyConfig, source: str) -> AuthorityPolicy:
    """The part of a policy file that concerns an authority; raises InputError if it admits nobody."""
    identities = frozenset(bytes.fromhex(identity) for identity in config.identities.values())
    certifier = None if config.authority is None else bytes.fromhex(config.authority)
    servers = frozenset(bytes.fromhex(server) for server in config.servers.values())
    if not servers or not (identities or certifier):
        raise InputError(f"{source}: name the servers, and the clients' identities or the authority that admits them")
    return AuthorityPolicy(Membership(identities, certifier), servers, config.corrupt, config.min_survivors)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give what `he keygen` wrote") from None
