"""Every error of the library, told apart by who has to act on it.

A protocol error says whose fault it is, because that is the first thing an operator asks and the only thing a
machine can act on. `InputError` is for data and files; it lives here so that one `except` serves the command line.
"""

from __future__ import annotations

from dataclasses import dataclass


class FedopalError(Exception):
    """Base of every error raised on purpose; its text is one line that says what is wrong and what to do."""


class InputError(FedopalError):
    """Data, files or options that a person gave are wrong. The command line exits with code 2."""


class OverflowBudgetError(InputError):
    """A value is outside the bound that the session's parameters promise, so a sum might wrap."""


class MisuseError(FedopalError):
    """Our own caller broke the contract of a function: a state used twice, a vector of the wrong length."""


@dataclass(frozen=True)
class Blame:
    """A client that did what no honest client does, or a dealer and a holder of whom one did (`holder` set)."""

    client: bytes
    reason: str
    holder: bytes | None = None


class ProtocolError(FedopalError):
    """Base of everything that ends a protocol run. The command line exits with code 3.

    `blame` is what had come to light of clients by then, beyond what the error itself says.
    """

    blame: tuple[Blame, ...] = ()


class ClientFault(ProtocolError):
    """A client sent something that no honest client sends.

    `client` is its identity (32 bytes, the Ed25519 public key) so that the caller can translate it into a name.
    """

    def __init__(self, client: bytes, reason: str) -> None:
        super().__init__(f"client {client.hex()[:12]}: {reason}")
        self.client = client
        self.reason = reason


class ServerFault(ProtocolError):
    """The server sent something that no honest server sends, or relayed a message without a valid signature."""


class PolicyRefusal(ProtocolError):
    """A client's own policy forbids what the server proposes; `rule` is the name of the policy's field."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"refused by policy rule '{rule}': {detail}")
        self.rule = rule
        self.detail = detail


class SessionAborted(ProtocolError):
    """Nobody need have cheated, but too few are left to go on; `rule` names the limit that was not met."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"aborted by rule '{rule}': {detail}")
        self.rule = rule
        self.detail = detail
