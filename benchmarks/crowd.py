"""Thousands of clients in one process: a few of them whole, the others without what only their own machine would do.

In a session of n clients each one checks the signatures of all survivors: n² checks, which n machines do side by side
and this one would do for hours. So outside a sample a client runs the real code with three shortcuts: signatures of
others are taken to be good, a message that all clients get alike is decoded and hashed once for all, and of what all of
them remember alike one copy is kept. Keys, masks, shares, ciphertexts and own signatures are always real, and the
server checks everything.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from benchmarks.session import Client
from fedopal_secure.core import client, codec, messages
from fedopal_secure.core.messages import RevealRequest, Roster, ShareMessage, View
from fedopal_secure.core.states import Attested, Holding, Shared

SHORTCUTS = (
    "Clients outside the sample take others' signatures to be good, and decode and hash once what all get alike."
)
_ALIKE = (Roster, View, RevealRequest)


class Crowd:
    """Runs clients' steps; those in the sample whole, the others with the shortcuts that the module names."""

    def __init__(self, sample: frozenset[int]) -> None:
        self.sample = sample
        self._shortcuts = False
        self._once: dict[tuple[object, int], tuple[object, Any]] = {}  # keeps the argument, so that its id stays taken
        self._copies: dict[object, Any] = {}

    def act(self, one: Client, step: str, data: bytes) -> bytes:
        """Take one step."""
        self._shortcuts = one.number not in self.sample
        sent = one.act(step, data)
        if self._shortcuts:
            self._deduplicate(one.state)
        return sent

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The shortcuts in place."""
        is_signed, decode = messages.is_signed, codec.decode

        def decode_once(kind: Any, data: bytes, fault: Any) -> Any:
            if self._shortcuts and kind in _ALIKE:
                return self._remember(kind, data, lambda: decode(kind, data, fault))
            return decode(kind, data, fault)

        def once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def call(argument: Any) -> Any:
                if self._shortcuts:
                    return self._remember(function, argument, lambda: function(argument))
                return function(argument)

            return call

        with ExitStack() as stack:
            for module, name, substitute in (
                (messages, "is_signed", lambda message: self._shortcuts or is_signed(message)),
                (client, "decode", decode_once),
                (messages, "roster_hash", once(messages.roster_hash)),
                (messages, "view_hash", once(messages.view_hash)),
            ):
                stack.enter_context(mock.patch.object(module, name, substitute))
            # Collecting garbage among ten thousand clients' states would be counted as one client's time.
            gc.disable()
            stack.callback(gc.enable)
            yield

    def _remember(self, what: object, argument: object, compute: Callable[[], Any]) -> Any:
        key = (what, id(argument))
        if key not in self._once:
            self._once[key] = (argument, compute())
        return self._once[key][1]

    def _deduplicate(self, state: Any) -> None:
        copy = self._copies.setdefault
        if isinstance(state, Shared | Holding | Attested):
            state.room = replace(state.room, identities=copy(state.room.identities, state.room.identities))
        if isinstance(state, Shared):
            state.own = self._message(state.own)
        if isinstance(state, Holding | Attested):
            state.sharers = copy(state.sharers, state.sharers)
            state.held = {copy(dealer, dealer): held for dealer, held in state.held.items()}
        if isinstance(state, Holding):
            state.dealt = {copy(dealer, dealer): self._message(message) for dealer, message in state.dealt.items()}
            state.peers = tuple(copy(peer, peer) for peer in state.peers)
        if isinstance(state, Attested):
            state.view = replace(state.view, survivors=copy(state.view.survivors, state.view.survivors))

    def _message(self, message: ShareMessage) -> ShareMessage:
        # By signature: hashing the whole message would cost more than it is worth.
        kept: ShareMessage = self._copies.setdefault(message.signature, message)
        return kept
