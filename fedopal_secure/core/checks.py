"""What a client checks in the server's messages: one function for one rule.

Each rule stands alone so that a test can take away exactly one of them and show the attack that it stops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fedopal_secure.core import masks, messages
from fedopal_secure.core.errors import PolicyRefusal, ServerFault
from fedopal_secure.core.graph import Graph, quorum
from fedopal_secure.core.messages import (
    Advert,
    Context,
    Proposal,
    Relay,
    RevealRequest,
    Roster,
    ShareMessage,
    UploadHeader,
    View,
)

if TYPE_CHECKING:
    from fedopal_secure.core.census import Census, Opening
    from fedopal_secure.core.policy import Membership
    from fedopal_secure.core.ring import U64, Ring
    from fedopal_secure.core.states import ParentView


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise ServerFault(reason)


def _ascending(identities: Sequence[bytes]) -> bool:
    return all(low < high for low, high in pairwise(identities))


# Proposal, before anything is sent.


def proposal_is_signed(proposal: Proposal) -> None:
    """The server that the parameters name signed them."""
    _require(messages.is_signed(proposal), "the proposal is not signed by the server that it names")


# Roster, before sharing.


def roster_is_ours(roster: Roster, session: bytes, clients: int) -> None:
    """It belongs to this session and is no larger than the parameters allow."""
    _require(roster.session == session, "the roster is of another session")
    _require(len(roster.adverts) <= clients, f"the roster has {len(roster.adverts)} members, the session {clients}")


def roster_is_ordered(roster: Roster) -> None:
    """Identities ascend strictly, so none occurs twice."""
    _require(_ascending([advert.sender for advert in roster.adverts]), "the roster repeats an identity or is unordered")


def roster_shows_own_advert(roster: Roster, own: Advert) -> None:
    """Our own entry is what we sent, byte for byte."""
    _require(own in roster.adverts, "the roster omits or alters our own advert")


def roster_admits_only_members(roster: Roster, members: Membership) -> None:
    """The policy knows every identity."""
    for advert in roster.adverts:
        if not members.admits(advert.sender, advert.certificate):
            raise PolicyRefusal("members", f"{advert.sender.hex()[:12]} is in the roster and unknown to the policy")


def adverts_are_signed(adverts: Iterable[Advert], session: bytes) -> None:
    """Each of these adverts is for this session and signed by its sender.

    A client asks this of those that it deals with; for the others the hash of the roster, which all attest, is enough.
    """
    for advert in adverts:
        _require(
            advert.session == session and messages.is_signed(advert),
            f"the advert of {advert.sender.hex()[:12]} is not signed for this session",
        )


def roster_repeats_no_key(roster: Roster) -> None:
    """No public key occurs twice, in either role: a copied masking key could cancel its owner's masks."""
    keys = [key for advert in roster.adverts for key in (advert.mask_key, advert.seal_key)]
    _require(len(set(keys)) == len(keys), "a public key occurs twice in the roster")


# Relay, before uploading.


def relay_is_ours(relay: Relay, session: bytes, identities: Sequence[bytes]) -> None:
    """It belongs to this session, and its sharers are distinct roster members in order."""
    sharers = [sharer.identity for sharer in relay.sharers]
    _require(relay.session == session, "the relay is of another session")
    _require(_ascending(sharers), "the relay repeats a sharer or is unordered")
    _require(set(sharers) <= set(identities), "the relay names a sharer outside the roster")


def dealers_are_sharers(relay: Relay) -> None:
    """Dealers ascend strictly, and each one's message is the one that the list of sharers holds the hash of."""
    listed = {sharer.identity: sharer.message for sharer in relay.sharers}
    _require(_ascending([dealt.message.sender for dealt in relay.dealers]), "the relay repeats a dealer")
    for dealt in relay.dealers:
        hashed = messages.share_message_hash(dealt.message)
        _require(listed.get(dealt.message.sender) == hashed, "the relay shows a message that its list does not")


def relay_shows_own_message(relay: Relay, own: ShareMessage) -> None:
    """We shared, so we are among the sharers, with the message that we sent."""
    _require(any(dealt.message == own for dealt in relay.dealers), "the relay omits or alters our own share message")


def relayed_messages_are_signed(relay: Relay, session: bytes, roster: bytes) -> None:
    """Every dealer signed its message, for this session and this roster."""
    for dealt in relay.dealers:
        message = dealt.message
        _require(
            message.session == session and message.roster == roster and messages.is_signed(message),
            f"the share message of {message.sender.hex()[:12]} is not signed for this session and roster",
        )


def relayed_messages_fit(relay: Relay, graph: Graph, places: Mapping[bytes, int], position: int) -> None:
    """Every dealer has as many holders as the graph says, us among them, and one entry for each.

    `places` are the roster positions of all members, `position` is ours.
    """
    for dealt in relay.dealers:
        dealer = dealt.message.sender
        suits = fits(dealt.message, graph, places[dealer]) and position in dealt.message.holders
        _require(suits, f"the share message of {dealer.hex()[:12]} does not fit")


def relay_is_complete(relay: Relay, graph: Graph) -> None:
    """On the complete graph everyone deals to everyone, so nobody's message is left out."""
    complete = graph.sparse or len(relay.dealers) == len(relay.sharers)
    _require(complete, "the relay leaves out the message of someone who shared")


def fits(message: ShareMessage, graph: Graph, position: int) -> bool:
    """Whether the holders are such as the graph gives the client at a position, with one entry for each."""
    holders = message.holders
    entries = (message.key_commitments, message.seed_commitments, message.ciphertext_hashes)
    return (
        len(holders) == graph.holders
        and position in holders
        and all(low < high for low, high in pairwise(holders))
        and holders[0] >= 0
        and holders[-1] < graph.roster
        and all(len(entry) == len(holders) for entry in entries)
    )


def relayed_ciphertexts_are_the_dealers(relay: Relay, position: int) -> None:
    """Each ciphertext is the one whose hash its dealer signed."""
    for dealt in relay.dealers:
        place = dealt.message.holders.index(position)
        _require(
            messages.ciphertext_hash(dealt.ciphertext) == dealt.message.ciphertext_hashes[place],
            f"the ciphertext of {dealt.message.sender.hex()[:12]} is not the one it signed",
        )


def enough_shared(relay: Relay, holders: Collection[bytes], threshold: int) -> None:
    """At least the threshold of our holders shared; with fewer our masks could not be removed lawfully."""
    shared = len({sharer.identity for sharer in relay.sharers}.intersection(holders))
    _require(shared >= threshold, f"{shared} of our holders shared, below the threshold of {threshold}")


# Context, when uploading.


def context_is_ours(context: Context, session: bytes, parent: bytes) -> None:
    """It belongs to this session and continues the parent that the parameters name."""
    _require(context.session == session, "the context is of another session")
    _require(context.parent == parent, "the context continues another session than the parameters say")


def we_survived_the_parent(context: Context, identity: bytes) -> None:
    """Whoever is no survivor of the parent is in no sum that continues it, so it must not be asked for its data."""
    among = not context.parent or identity in context.parent_survivors
    _require(among, "asked to upload, although we are no survivor of the session that this one continues")


def census_allows(census: Census | None, minimum: int, corrupt: int, survivors: Collection[bytes] | None) -> None:
    """Every class keeps `minimum` honest contributors, if a census is asked for.

    At most `corrupt` contributors lied, and each survivor of the census who is none of `survivors` (None: nobody has
    left yet) may have been one.
    """
    if not minimum:
        return
    if census is None:
        raise PolicyRefusal("min_contributors", "no census was taken in the sessions that this one continues")
    lost = 0 if survivors is None else len(set(census.survivors) - set(survivors))
    for number, contributors in enumerate(census.contributors):
        if contributors - lost - corrupt < minimum:
            detail = f"class {number} has {contributors} contributors, of whom {lost} left and {corrupt} may be corrupt"
            raise PolicyRefusal("min_contributors", f"{detail}; {minimum} are needed")


def context_shows_own_parent_view(context: Context, parent: ParentView | None) -> None:
    """The parent's view and survivors are those that we attested ourselves."""
    told = (context.parent, context.parent_view, context.parent_survivors)
    known = (b"", b"", ()) if parent is None else (parent.session, parent.view, parent.survivors)
    _require(told == known, "the context shows another view of the parent session than we attested")


# Opening of a census, before uploading in the session that continues it.


def opening_fits(opening: Opening, session: bytes, survivors: int, dropped: int) -> None:
    """It is of this session, with one entry for each survivor and each sharer that dropped out."""
    counts = (len(opening.payloads), len(opening.seeds), len(opening.mask_secrets))
    fits = opening.session == session and counts == (survivors, survivors, dropped)
    _require(fits, "the opening of the census is not of the view that was attested")


def opening_payloads_are_signed(opening: Opening, headers: Sequence[UploadHeader], size: int) -> None:
    """Every payload is the one whose hash its sender signed."""
    for payload, header in zip(opening.payloads, headers, strict=True):
        signed = messages.payload_hash(payload) == header.payload_hash and len(payload) == size
        _require(signed, f"the opening of the census shows another upload of {header.sender.hex()[:12]} than it signed")


def opening_shows_residues(vector: U64, ring: Ring) -> None:
    """The entries of an upload are residues."""
    _require(ring.contains(vector), "the opening of the census shows an upload with entries that are not residues")


def opening_seeds_are_the_dealers(opening: Opening, hashes: Sequence[bytes]) -> None:
    """Every seed is the one that its dealer committed to."""
    for seed, hashed in zip(opening.seeds, hashes, strict=True):
        committed = messages.seed_hash(seed) == hashed
        _require(committed, "the opening of the census shows a seed that its dealer did not commit to")


def opening_mask_secrets_are_the_dealers(opening: Opening, keys: Sequence[bytes]) -> None:
    """Every masking key is the one that was advertised."""
    for secret, key in zip(opening.mask_secrets, keys, strict=True):
        advertised = masks.public_key(secret) == key
        _require(advertised, "the opening of the census shows a masking key that was not advertised")


# View, before attesting.


def view_is_ours(view: View, session: bytes, roster: bytes, sharers: bytes, context: bytes) -> None:
    """Session, roster, sharers and context are those that we know."""
    _require(
        (view.session, view.roster, view.sharers, view.context) == (session, roster, sharers, context),
        "the view is of another session, roster, set of sharers or context than ours",
    )


def survivors_are_distinct_sharers(view: View, sharers: Sequence[bytes]) -> None:
    """Survivors ascend strictly and all of them shared."""
    survivors = [header.sender for header in view.survivors]
    _require(_ascending(survivors), "the view repeats a survivor or is unordered")
    _require(set(survivors) <= set(sharers), "the view has a survivor that never shared")


def survivors_headers_match(view: View) -> None:
    """Every survivor uploaded under this same session, roster, set of sharers and context."""
    for header in view.survivors:
        _require(
            (header.session, header.roster, header.sharers, header.context)
            == (view.session, view.roster, view.sharers, view.context),
            f"{header.sender.hex()[:12]} uploaded under another roster, set of sharers or context",
        )


def survivors_headers_are_signed(view: View) -> None:
    """Every survivor signed its header."""
    for header in view.survivors:
        _require(messages.is_signed(header), f"the upload header of {header.sender.hex()[:12]} is not signed by it")


def view_treats_us_right(view: View, identity: bytes, own: UploadHeader | None) -> None:
    """We are a survivor if and only if we uploaded, and with our own header byte for byte."""
    shown = [header for header in view.survivors if header.sender == identity]
    _require(shown == ([] if own is None else [own]), "the view is wrong about our own upload")


def survivors_keep_holders(
    view: View, identities: Sequence[bytes], holders: Mapping[bytes, Sequence[int]], threshold: int
) -> None:
    """On a sparse graph: every survivor whose shares we hold keeps at least the threshold of its holders.

    `holders` are roster positions by dealer. Otherwise the server could declare all neighbours of a victim dropped,
    rebuild their masking keys and be left with the victim's vector under a self-mask that it may remove.
    """
    survivors = {header.sender for header in view.survivors}
    for dealer in survivors & holders.keys():
        kept = sum(identities[position] in survivors for position in holders[dealer])
        _require(kept >= threshold, f"{kept} holders of {dealer.hex()[:12]} survive, below the threshold")


def cohort_is_reached(survivors: int, cohort: int) -> None:
    """The sum is over enough clients."""
    if survivors < cohort:
        raise PolicyRefusal("min_survivors", f"{survivors} survivors, and {cohort} are needed")


def survivors_are_the_parents(view: View, parent: bytes, context: Context) -> None:
    """A session that continues another sums over no one who was not in that one."""
    survivors = {header.sender for header in view.survivors}
    _require(not parent or survivors <= set(context.parent_survivors), "a survivor was not one of the parent session")


# Reveal request, before releasing a share.


def request_is_for_own_view(request: RevealRequest, session: bytes, view: bytes) -> None:
    """It asks about the one view that we signed."""
    _require(
        (request.session, request.view) == (session, view), "the request is for another view than the one we signed"
    )


def attestations_are_of_distinct_members(request: RevealRequest, identities: Sequence[bytes]) -> None:
    """Signers ascend strictly and are in the roster."""
    signers = [attestation.sender for attestation in request.attestations]
    _require(_ascending(signers), "the request repeats a signer or is unordered")
    _require(set(signers) <= set(identities), "the request shows a signature from outside the roster")


def attestations_are_signed(request: RevealRequest, session: bytes, view: bytes) -> None:
    """Every signature is on the view that we signed."""
    for attestation in request.attestations:
        _require(
            (attestation.session, attestation.view) == (session, view) and messages.is_signed(attestation),
            f"{attestation.sender.hex()[:12]} did not sign the view that we signed",
        )


def quorum_is_reached(request: RevealRequest, roster: int, corrupt: int) -> None:
    """More than half of the roster and the corrupt clients together signed: no other view has as many."""
    _require(
        len(request.attestations) >= quorum(roster, corrupt),
        f"{len(request.attestations)} signatures are no quorum of {roster} members with c = {corrupt}",
    )


def lists_are_the_views(request: RevealRequest, survivors: Sequence[bytes], dropped: Sequence[bytes]) -> None:
    """The two lists are exactly the survivors and the other sharers of that view: never both kinds for one client."""
    _require(
        (request.survivors, request.dropped) == (tuple(survivors), tuple(dropped)),
        "the lists are not exactly the survivors and the dropped sharers of the view",
    )
