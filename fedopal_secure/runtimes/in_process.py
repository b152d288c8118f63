"""A whole round in one process, from top to bottom. It carries bytes between clients and server and decides nothing.

Each session of a round goes through the same phases:

    advertise | share, hold (of every session, while prompts are tuned) | upload, attest, reveal

With two-phase prompts the last three happen twice: first for the prompts, then for the statistics. Encrypted vectors
that are not masked need only join | upload, and every encrypted sum ends with `open`, which the key authority answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from fedopal_secure.federation.client import RoundClient
from fedopal_secure.federation.secure_sum import UPLOAD
from fedopal_secure.federation.server import RoundServer
from fedopal_secure.he.authority import KeyAuthority
from fedopal_secure.model import Model

Dropout = Callable[[str, str, Sequence[bytes]], Iterable[bytes]]


def nobody(session: str, phase: str, asked: Sequence[bytes]) -> Iterable[bytes]:
    """The dropout of a round in which everyone stays."""
    return ()


def run_round(
    server: RoundServer,
    clients: Mapping[bytes, RoundClient],
    dropout: Dropout = nobody,
    authority: KeyAuthority | None = None,
) -> Model:
    """Run every session of a round and return the released model.

    `dropout(session, phase, asked)` says who disappears for good before answering a phase. Errors of the protocol
    pass through: they name the rule that failed, or who is at fault.
    """
    alive = dict(clients)

    def exchange(session: str, phase: str) -> None:
        requests = server.request(session, phase)
        for gone in dropout(session, phase, [client for client in requests if client in alive]):
            del alive[gone]
        for party, request in requests.items():
            answer = b""
            if party in alive:
                answer = alive[party].answer(session, phase, request)
            elif authority is not None and party == authority.identity:
                answer = authority.open_total(request)
            if answer:
                server.receive(session, phase, party, answer)

    def tune() -> None:
        for identity, client in clients.items():
            if identity in alive:
                client.tune()

    first, *setup = server.phases[: server.phases.index(UPLOAD)]
    closing = server.phases[server.phases.index(UPLOAD) :]

    with ExitStack() as leaving:
        for client in clients.values():
            leaving.callback(client.close)  # whatever happens, secrets are erased
        for session in server.sessions:
            exchange(session, first)
        with ThreadPoolExecutor(1) as worker:
            # Keys and shares depend on no data, so every session is set up while prompts are tuned.
            tuning = worker.submit(tune)
            try:
                for session in server.sessions:
                    for phase in setup:
                        exchange(session, phase)
                tuning.result()
            except BaseException:
                alive.clear()  # nobody else starts tuning; the one who has finishes first
                raise
        for session in server.sessions:
            for phase in closing:
                exchange(session, phase)
            server.finish(session)
    return server.release()
