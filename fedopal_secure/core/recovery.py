"""From shares to a sum: rebuild what dealers shared, say who is at fault where that fails, and take the masks off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fedopal_secure.core import masks, messages
from fedopal_secure.core.errors import Blame, ClientFault, SessionAborted
from fedopal_secure.core.messages import KEY_SHARE, SEED_SHARE, ShareMessage
from fedopal_secure.core.params import SessionParams
from fedopal_secure.core.ring import U64, Ring, reduce_to_width
from fedopal_secure.core.shamir import Recovery


@dataclass(frozen=True)
class Shown:
    """One share that a holder revealed; `place` is where the dealer's message speaks of this holder."""

    holder: bytes
    place: int
    share: bytes


@dataclass
class Rebuilder:
    """Rebuilds dealers' secrets from what holders revealed.

    A share that its dealer did not commit to is the holder's fault, and others are used. Shares that are as committed
    and yet rebuild nothing, or not what the dealer advertised, are the dealer's.
    """

    session: bytes
    threshold: int
    blame: list[Blame] = field(default_factory=list)
    # The last set of holders: on the complete graph it is nearly always the same one.
    _indices: tuple[int, ...] = ()
    _recovery: Recovery | None = None

    def seed(self, message: ShareMessage, shown: Iterable[Shown]) -> bytes:
        """A survivor's self-mask seed; raises ClientFault naming its dealer, or SessionAborted."""
        seed = self._combine(message, SEED_SHARE, message.seed_commitments, shown)
        if seed is None or messages.seed_hash(seed) != message.seed_hash:
            raise ClientFault(message.sender, "dealt shares that do not rebuild the self-mask seed it committed to")
        return seed

    def mask_secret(self, message: ShareMessage, shown: Iterable[Shown], mask_key: bytes) -> bytes:
        """The masking key of a dropped client, which advertised `mask_key`; raises as `seed` does."""
        secret = self._combine(message, KEY_SHARE, message.key_commitments, shown)
        if secret is None or masks.public_key(secret) != mask_key:
            raise ClientFault(message.sender, "dealt shares that do not rebuild the masking key it advertised")
        return secret

    def _combine(
        self, message: ShareMessage, kind: bytes, commitments: tuple[bytes, ...], shown: Iterable[Shown]
    ) -> bytes | None:
        dealer = message.sender
        good: dict[int, bytes] = {}
        for item in shown:
            index = message.holders[item.place] + 1
            if not item.share:
                blame = Blame(dealer, "the holder says that its share did not open or match", item.holder)
                self.blame.append(blame)
            elif messages.share_commitment(self.session, dealer, index, kind, item.share) == commitments[item.place]:
                good[index] = item.share
            else:
                self.blame.append(Blame(item.holder, f"revealed a share that {dealer.hex()[:12]} did not commit to"))
        if len(good) < self.threshold:
            detail = f"{len(good)} good shares of {dealer.hex()[:12]}, and it takes {self.threshold}"
            raise SessionAborted("threshold", detail)
        if self._recovery is None or self._indices != tuple(good):
            self._indices = tuple(good)
            self._recovery = Recovery(self._indices, self.threshold)
        return self._recovery.combine(list(good.values()))


def unmask(
    total: U64,
    params: SessionParams,
    seeds: Mapping[bytes, bytes],
    mask_secrets: Mapping[bytes, bytes],
    peers: Callable[[bytes], Iterable[bytes]],
    mask_keys: Mapping[bytes, bytes],
    binding: masks.Binding,
) -> U64:
    """The sum of the survivors' vectors, from the sum of their uploads.

    `seeds` are the survivors' self-mask seeds and `mask_secrets` the masking keys of those who dropped out, by
    identity; `peers` says which survivors masked with one of the latter, `mask_keys` has everyone's public key. `total`
    is used up.
    """
    ring = Ring(params.modulus)
    for survivor, seed in seeds.items():
        remove_self_mask(ring, total, seed, survivor, binding)
    for gone, mask_secret in mask_secrets.items():
        remove_pair_masks(ring, total, mask_secret, gone, peers(gone), mask_keys, binding)
    return total if params.modulus else reduce_to_width(total, params.segments)


def remove_self_mask(ring: Ring, total: U64, seed: bytes, identity: bytes, binding: masks.Binding) -> None:
    """Take a survivor's self-mask off the sum, in place."""
    masks.apply_stream(ring, total, masks.self_key(seed, identity, binding), masks.SUBTRACT)


def remove_pair_masks(
    ring: Ring,
    total: U64,
    mask_secret: bytes,
    gone: bytes,
    survivors: Iterable[bytes],
    mask_keys: Mapping[bytes, bytes],
    binding: masks.Binding,
) -> None:
    """Take off what survivors added for a client that dropped out, in place.

    `survivors` are those that masked with it, and `mask_keys` has everyone's masking public key.
    """
    private = masks.load(mask_secret)
    own = (gone, mask_keys[gone])
    for survivor in survivors:
        peer = (survivor, mask_keys[survivor])
        stream = masks.pair_key(masks.agree(private, peer[1], survivor), own, peer, binding)
        # The survivor's upload holds the stream with the survivor's sign; take it off again.
        masks.apply_stream(ring, total, stream, -masks.pair_sign(survivor, gone))
