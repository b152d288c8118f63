"""Misuses of the set-up: bytes, proposals, rosters with their keys, relays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from protocols.secagg.v1 import primitives as p
from protocols.secagg.v1.cases import (
    PRIME_BFV,
    SEGMENTS,
    Case,
    Change,
    case,
    claimed,
    honest,
    id_of,
    ids_of,
    key_of,
    letter,
    played,
    put,
    resign,
    told,
)
from protocols.secagg.v1.sessions import shake


def encodings() -> Iterator[tuple[str, Case]]:
    """Other bytes for the same value, and values of other types."""

    def swap(old: bytes, new: bytes) -> Change:
        def change(data: bytes) -> bytes:
            if old not in data:
                raise ValueError(f"{old.hex()} is not there")
            return data.replace(old, new, 1)

        return change

    roster, relay, proposal = ("share", "a roster"), ("hold", "a relay"), ("advertise", "a proposal")
    session = bytes.fromhex("c420") + played("complete_3").host.session
    table: list[tuple[str, tuple[str, str], str, Change]] = [
        ("trailing_byte", roster, "with a byte after its end", lambda d: d + b"\0"),
        ("second_message", roster, "sent twice in one", lambda d: d + d),
        ("empty", roster, "of no bytes", lambda d: b""),
        ("truncated", roster, "without its last byte", lambda d: d[:-1]),
        ("integer_longer", relay, "with a small integer in two bytes", swap(b"\x93\0\1\2", b"\x93\xcc\0\1\2")),
        ("integer_64_bit", relay, "with a small integer in nine bytes",
         swap(b"\x93\0\1\2", b"\x93\0\1\xcf" + (2).to_bytes(8, "big"))),
        ("string_longer", roster, "with its tag under a longer header", swap(b"\xa6roster", b"\xd9\6roster")),
        ("binary_longer", roster, "with bytes under a longer header", swap(session, b"\xc5\0\x20" + session[2:])),
        ("array_longer", roster, "under a longer array header", lambda d: b"\xdc\0\3" + d[1:]),
        ("array_longest", roster, "under the longest array header", lambda d: b"\xdd\0\0\0\3" + d[1:]),
        ("array_beyond_the_end", roster, "that announces 2^32 - 1 adverts",
         lambda d: d[: 8 + len(session)] + b"\xdd" + b"\xff" * 4),
        ("wrong_tag", roster, "with the tag of another message", swap(b"\xa6roster", b"\xa5relay")),
        ("tag_as_binary", roster, "with its tag as bytes", swap(b"\xa6roster", b"\xc4\6roster")),
        ("no_tag", roster, "without its tag", lambda d: b"\x92" + d[8:]),
        ("extra_field", roster, "with a field too many", lambda d: b"\x94" + d[1:] + b"\xc0"),
        ("missing_field", proposal, "without its last field", lambda d: b"\x92" + d[1:-66]),
        ("map", roster, "as a map", lambda d: b"\x82\xa7session" + session + b"\xa7adverts\x90"),
        ("string_for_bytes", roster, "with a string for a hash", swap(session, b"\xd9\x20" + b"a" * 32)),
        ("short_hash", roster, "with a hash of 31 bytes", swap(session, b"\xc4\x1f" + session[2:-1])),
        ("long_hash", roster, "with a hash of 33 bytes", swap(session, b"\xc4\x21" + session[2:] + b"\0")),
        ("nil", roster, "with nil for a hash", swap(session, b"\xc0")),
        ("extension", roster, "with an extension type for a hash", swap(session, b"\xc7\x20\1" + session[2:])),
        ("deeply_nested", roster, "of 2000 arrays in each other", lambda d: b"\x91" * 2000),
        ("float_for_integer", proposal, "with a float for the width of a segment",
         swap(b"\xa1x\5\3", b"\xa1x\5\xcb" + bytes.fromhex("4008000000000000"))),
        ("boolean_for_integer", proposal, "with true for the width of a segment", swap(b"\xa1x\5\3", b"\xa1x\5\xc3")),
        ("integer_for_boolean", proposal, "with 1 for true", swap(b"\xa1x\5\3\xc3", b"\xa1x\5\3\1")),
        ("integer_for_float", proposal, "with 1 for 1.0", swap(b"\xcb\x3f\xf0" + bytes(6), b"\1")),
        ("float_of_32_bits", proposal, "with a float of 32 bits",
         swap(b"\xcb\x3f\xf0" + bytes(6), b"\xca\x3f\x80\0\0")),
        ("invalid_utf8", proposal, "with a name that is not UTF-8", swap(b"\xa8embedded", b"\xa8embedde\xff")),
        ("surrogate", proposal, "with half a surrogate pair in a name",
         swap(b"\xa8embedded", b"\xa8embed\xed\xa0\x80")),
    ]  # fmt: skip
    for name, (step, what), how, change in table:
        yield f"encoding_{name}", told(f"{what} {how} is refused", "complete_3", step, 1, change, "encoding", raw=True)
    for name, step, how, change in (
        ("advert_trailing_byte", "advertise", "an advert with a byte after its end", lambda d: d + b"\0"),
        ("advert_certificate_65", "advertise", "a certificate of 65 bytes",
         swap(b"\xc4\0\xc4\x40", b"\xc4\x41" + bytes(65) + b"\xc4\x40")),
        ("upload_tag", "upload", "an upload with another tag", swap(b"\xa6upload", b"\xa6reveal")),
        ("reveal_share_34", "reveal", "a share of 34 bytes", swap(b"\xc4\x21", b"\xc4\x22\0")),
        ("ciphertext_83", "share", "a ciphertext of 83 bytes", swap(b"\xc4\x52", b"\xc4\x53\0")),
    ):  # fmt: skip
        claim = f"{how} is its sender's fault"
        yield f"encoding_{name}", claimed(claim, "complete_3", step, 1, change, "encoding", raw=True)


def proposals() -> Iterator[tuple[str, Case]]:
    """Parameters that no client accepts, and those that this policy does not."""

    def proposed(claim: str, rule: str, params: Change, policy: Case | None = None, name: str = "complete_3") -> Case:
        key = bytes.fromhex(honest()[name]["server_key"])
        more: Case = {"policy": policy} if policy else {}

        def change(m: Any) -> Any:
            return resign(key, m, params=params(m.params))

        return told(claim, name, "advertise", 0, change, rule, error="PolicyRefusal", **more)

    def params(**changes: Any) -> Change:
        return lambda s: s._replace(**changes)

    def task(**changes: Any) -> Change:
        return lambda s: s._replace(task=s.task._replace(**changes))

    def segments(*new: tuple[str, int, int]) -> Change:
        return params(segments=tuple(p.Segment(*given, True) for given in new))

    prompts = {"prompt_mode": "public", "prompt_tokens": 1, "prompt_dimension": 1, "prompt_source": bytes(32)}
    long = params(clients=300, degree=12)
    table: list[tuple[str, str, str, Change]] = [
        ("name_empty", "name", "a session has a name", params(name="")),
        ("parent_short", "parent", "a parent is empty or 32 bytes", params(parent=bytes(31))),
        ("clients_2", "clients", "fewer than three clients are refused", params(clients=2)),
        ("clients_16385", "clients", "more than 2^14 clients are refused", params(clients=2**14 + 1, degree=100)),
        ("corrupt_all", "corrupt", "somebody must be honest", params(corrupt=3)),
        ("min_survivors_2", "min_survivors", "a cohort is at least three", params(min_survivors=2)),
        ("min_survivors_c", "min_survivors", "a cohort is at least c + 2",
         params(clients=9, corrupt=3, min_survivors=4)),
        ("min_survivors_all", "min_survivors", "a cohort is no larger than the cap on clients",
         params(min_survivors=4)),
        ("degree_on_complete", "degree", "up to 256 clients the graph is complete", params(degree=2)),
        ("degree_0_on_sparse", "degree", "beyond 256 clients the graph is sparse", params(clients=257)),
        ("degree_1025", "degree", "more than 1024 holders are refused", params(clients=3000, degree=1025)),
        ("modulus_composite", "modulus", "a modulus is prime", params(modulus=2**50)),
        ("modulus_carmichael", "modulus", "a modulus is prime (561 is a Carmichael number)", params(modulus=561)),
        ("modulus_2", "modulus", "2 is no modulus", params(modulus=2)),
        ("modulus_64_bit", "modulus", "a prime modulus is below 2^63", params(modulus=2**64 - 59)),
        ("public_context", "public_context", "nothing is encrypted", params(public_context=bytes(32))),
        ("public_context_short", "public_context", "whatever it is encrypted under", params(public_context=bytes(31))),
        ("segments_none", "segments", "there is something to sum", segments()),
        ("segments_same_name", "segments", "segments have distinct names", segments(("x", 1, 1), ("x", 1, 1))),
        ("segments_no_entries", "segments", "a segment has entries", segments(("x", 0, 1))),
        ("segments_width_0", "segments", "an entry has at least one byte", segments(("x", 1, 0))),
        ("segments_width_9", "segments", "an entry has at most eight bytes", segments(("x", 1, 9))),
        ("segments_total", "segments", "a vector has at most 2^32 entries", segments(("x", 2**32, 1), ("y", 1, 1))),
        ("segments_prime_width", "segments", "entries are as wide as a prime modulus",
         params(modulus=PRIME_BFV, segments=SEGMENTS)),
        ("classes_1", "classes", "there are two classes at least", task(classes=("cat",))),
        ("classes_twice", "classes", "classes are distinct", task(classes=("cat", "cat"))),
        ("feature_dimension_1", "feature_dimension", "a feature has two entries at least", task(feature_dimension=1)),
        ("feature_dimension_large", "feature_dimension", "and at most 2^16", task(feature_dimension=2**16 + 1)),
        ("feature_bits_0", "feature_bits", "a grid has a bit", task(feature_bits=0)),
        ("feature_bits_25", "feature_bits", "and at most 24", task(feature_bits=25)),
        ("feature_bits_few", "feature_bits", "rounding leaves something of the ball",
         task(feature_bits=1, feature_dimension=16)),
        ("feature_bound_0", "feature_bound", "the bound is positive", task(feature_bound=0.0)),
        ("feature_bound_small", "feature_bound", "a scale factor is an ordinary float", task(feature_bound=2.0**-65)),
        ("feature_bound_large", "feature_bound", "and its square too", task(feature_bound=2.0**65)),
        ("feature_bound_infinite", "feature_bound", "the bound is finite", task(feature_bound=float("inf"))),
        ("feature_bound_nan", "feature_bound", "the bound is a number", task(feature_bound=float("nan"))),
        ("max_images_0", "max_images", "there may be an image", task(max_images=0)),
        ("max_images_many", "max_images", "and at most 2^40", task(max_images=2**40 + 1)),
        ("min_contributors_many", "min_contributors", "no more contributors than clients", task(min_contributors=4)),
        ("census_and_release", "min_contributors", "exact presence bits would void a private release",
         task(min_contributors=1, release="dp")),
        ("census_and_sparse", "min_contributors", "a census needs the complete graph",
         lambda s: task(min_contributors=1)(long(s))),
        ("census_without_minimum", "min_contributors", "a census has a minimum to check", params(name="census")),
        ("census_with_parent", "parent", "a census comes first",
         lambda s: task(min_contributors=1)(params(name="census", parent=bytes(32))(s))),
        ("census_missing", "parent", "a session after a census names its parent", task(min_contributors=1)),
        ("prompt_mode", "prompt_mode", "a prompt mode is one of four", task(prompt_mode="secret")),
        ("prompt_bits_33", "prompt_bits", "prompts have 32 bits at most", task(prompt_bits=33)),
        ("prompt_bound_0", "prompt_bound", "the bound of prompts is positive", task(prompt_bound=0.0)),
        ("prompt_bound_small", "prompt_bound", "and no smaller than 2^-64", task(prompt_bound=2.0**-65)),
        ("prompt_bound_large", "prompt_bound", "nor larger than 2^64", task(prompt_bound=2.0**65)),
        ("prompts_in_mode_none", "prompts", "mode none has no prompts", task(prompt_tokens=1)),
        ("prompts_no_tokens", "prompts", "other modes have prompts", task(**prompts | {"prompt_tokens": 0})),
        ("prompts_dimension", "prompts", "of at most 2^16 entries", task(**prompts | {"prompt_dimension": 2**16 + 1})),
        ("prompts_source", "prompts", "whose source is 32 bytes", task(**prompts | {"prompt_source": b"x"})),
    ]  # fmt: skip
    for name, rule, claim, change in table:
        yield f"params_{name}", proposed(claim, rule, change)
    two = {"protocols": ["secagg/v1", "secagg/v2"]}
    claim = "only the protocol that is spoken here"
    yield "params_protocol", proposed(claim, "protocol", params(protocol="secagg/v2"), two)
    agreed: list[tuple[str, str, str, Change, Case | None]] = [
        ("protocols", "protocols", "a protocol that the policy does not accept", params(protocol="secagg/v2"), None),
        ("corrupt", "corrupt", "fewer corrupt clients than the policy assumes", params(), {"corrupt": 1}),
        ("min_survivors", "min_survivors", "a smaller cohort than the policy asks for", params(), {"min_survivors": 4}),
        ("min_threshold", "min_threshold", "a lower threshold than the policy asks for", params(),
         {"min_threshold": 3}),
        ("backbone", "backbone", "another backbone", task(backbone="other"), None),
        ("backbone_hash", "backbone_hash", "other weights", task(backbone_hash=b"x" * 32), None),
        ("preprocessing", "preprocessing", "another preprocessing", task(preprocessing="none"), None),
        ("classes", "classes", "the classes in another order", task(classes=("dog", "cat")), None),
        ("max_images_higher", "max_images", "a higher cap on images", task(max_images=1001), None),
        ("max_images_lower", "max_images", "a lower cap, which would ask whether a client is above it",
         task(max_images=999), None),
        ("prompt_modes", "prompt_modes", "a prompt mode that the policy does not accept", task(**prompts),
         {"prompt_modes": ["none"]}),
        ("release", "release", "another release", task(release="dp"), None),
        ("min_contributors", "min_contributors", "a lower minimum of contributors", params(), {"min_contributors": 2}),
    ]  # fmt: skip
    for name, rule, claim, change, policy in agreed:
        yield f"policy_{name}", proposed(f"{claim} is refused", rule, change, policy)
    stranger = shake("a stranger", 32)

    def elsewhere(m: Any) -> Any:
        return resign(stranger, m, params=m.params._replace(server=p.identity_of(stranger)))

    claim = "a server that the policy does not know is refused"
    yield "policy_servers", told(claim, "complete_3", "advertise", 0, elsewhere, "servers", error="PolicyRefusal")
    for name, claim, change in (
        ("unsigned", "a proposal without a signature", lambda m: m._replace(signature=bytes(64))),
        ("wrong_signer", "a proposal that somebody else signed", lambda m: resign(stranger, m)),
        ("changed", "a proposal that was changed after signing",
         lambda m: m._replace(params=m.params._replace(nonce=bytes(32)))),
        ("signature_of_another_use", "a signature of the same bytes under another label",
         lambda m: m._replace(signature=p.sign_bytes(
             bytes.fromhex(honest()["complete_3"]["server_key"]), "sign advert",
             p.encode(m._replace(signature=bytes(64)))))),
    ):  # fmt: skip
        yield (
            f"proposal_{name}",
            told(f"{claim} is refused", "complete_3", "advertise", 0, change, "proposal.signature"),
        )


def rosters() -> Iterator[tuple[str, Case]]:
    """Rosters that a client must not share with."""
    c3, c5 = "complete_3", "complete_5"
    stranger = shake("a stranger", 32)

    def outsider(m: Any, certificate: bytes = b"") -> Any:
        keys = p.public(shake("a stranger's mask", 32)), p.public(shake("a stranger's seal", 32))
        return p.sign(stranger, p.Advert, m.session, p.identity_of(stranger), *keys, certificate)

    def entered(m: Any, *adverts: Any) -> Any:
        return m._replace(adverts=tuple(sorted(adverts, key=lambda a: a.sender)))

    def at(name: str, place: int, **changes: Any) -> Change:
        return lambda m: m._replace(
            adverts=put(m.adverts, place, resign(key_of(name, place), m.adverts[place], **changes))
        )

    def raw(place: int, **changes: Any) -> Change:
        return lambda m: m._replace(adverts=put(m.adverts, place, m.adverts[place]._replace(**changes)))

    def other_session(m: Any) -> Any:
        key, a = key_of(c3, 1), m.adverts[1]
        return m._replace(adverts=put(m.adverts, 1, resign(key, a, session=bytes(32))))

    lies: list[tuple[str, str, str, str, Change]] = [
        ("session", "a roster of another session", c3, "roster.session", lambda m: m._replace(session=bytes(32))),
        ("too_many", "more members than the session has clients", c3, "roster.size",
         lambda m: entered(m, *m.adverts, outsider(m))),
        ("repeats_identity", "an identity twice", c3, "roster.order",
         lambda m: m._replace(adverts=put(m.adverts, 2, m.adverts[1]))),
        ("unordered", "members out of order", c3, "roster.order", lambda m: m._replace(adverts=m.adverts[::-1])),
        ("own_missing", "without the client's own advert", c5, "roster.own",
         lambda m: m._replace(adverts=m.adverts[1:])),
        ("own_changed", "with another masking key under the client's name", c3, "roster.own",
         raw(0, mask_key=bytes(32))),
        ("own_other_signature", "with another signature on the client's advert", c3, "roster.own",
         raw(0, signature=bytes(64))),
        ("unsigned", "with an advert that its owner did not sign", c3, "roster.advert", raw(1, signature=bytes(64))),
        ("key_replaced", "with a sealing key that its owner did not sign", c3, "roster.advert",
         raw(1, seal_key=bytes(31) + b"\1")),
        ("certificate_replaced", "with a certificate that its owner did not sign", c3, "roster.advert",
         raw(1, certificate=b"x")),
        ("replayed_advert", "with an advert of another session", c3, "roster.advert", other_session),
        ("mask_key_twice", "with a masking key copied from another member", c3, "roster.keys",
         lambda m: at(c3, 1, mask_key=m.adverts[0].mask_key)(m)),
        ("keys_across_roles", "with a sealing key that is another member's masking key", c3, "roster.keys",
         lambda m: at(c3, 1, seal_key=m.adverts[0].mask_key)(m)),
    ]  # fmt: skip
    for name, claim, of, reason, change in lies:
        yield (
            f"roster_{name}",
            told(
                f"a roster {claim} is refused" if claim.startswith("with") else f"{claim} in a roster: refused",
                of,
                "share",
                0,
                change,
                reason,
            ),
        )
    refused: list[tuple[str, str, str, str, Change]] = [
        ("stranger", "a member that the policy does not know", c3, "members",
         lambda m: entered(m, m.adverts[0], m.adverts[1], outsider(m))),
        ("stranger_uncertified", "a member whom the authority did not certify", "authority_3", "members",
         lambda m: entered(m, m.adverts[0], m.adverts[1], outsider(m, p.certify(stranger, p.identity_of(stranger))))),
        ("stranger_borrows_certificate", "a member that shows another member's certificate", "authority_3", "members",
         lambda m: entered(m, m.adverts[0], m.adverts[1], outsider(m, m.adverts[2].certificate))),
        ("too_few", "a roster that is too small for the cohort", c5, "min_survivors",
         lambda m: m._replace(adverts=m.adverts[:2])),
        ("too_small_for_degree", "a sparse graph whose roster has fewer others than holders to draw", "sparse_20",
         "degree",
         lambda m: m._replace(adverts=m.adverts[:12])),
    ]  # fmt: skip
    for name, claim, of, rule, change in refused:
        yield f"roster_{name}", told(f"{claim} is refused", of, "share", 0, change, rule, error="PolicyRefusal")
    smaller = {"min_threshold": 4}
    claim = "a roster whose threshold is lower than the policy asks for, though the proposal's was not"
    yield "roster_threshold", told(claim, c5, "share", 0, lambda m: m._replace(adverts=m.adverts[:4]), "min_threshold",
                                   error="PolicyRefusal", policy=smaller)  # fmt: skip
    for name, claim, key, reason in (
        ("zero", "the point of order 4", bytes(32), "key.order"),
        ("one", "the point of order 1", b"\1" + bytes(31), "key.order"),
        ("order_8", "a point of order 8",
         bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), "key.order"),
        ("p", "zero in a second form", (2**255 - 19).to_bytes(32, "little"), "key.canonical"),
        ("p_plus_9", "the base point in a second form", (2**255 - 10).to_bytes(32, "little"), "key.canonical"),
        ("top_bit", "the base point with the top bit set", (9 + 2**255).to_bytes(32, "little"), "key.canonical"),
    ):  # fmt: skip
        told_of = f"{claim} as a sealing key is its owner's fault"
        yield (
            f"key_{name}",
            told(told_of, c3, "share", 0, at(c3, 1, seal_key=key), reason, error="ClientFault", culprit=1),
        )
        for role in ("mask", "seal"):

            def change(m: Any, role: str = role, key: bytes = key) -> Any:
                return resign(key_of(c3, 1), m, **{f"{role}_key": key})

            said = f"the server takes no advert with {claim} as {role}ing key"
            yield f"advert_{role}_key_{name}", claimed(said, c3, "advertise", 1, change, reason)
    for name, claim, of, reason, change in (
        ("sender", "another client's advert", c3, "advert.sender",
         lambda m: resign(key_of(c3, 2), m, sender=id_of(c3, 2))),
        ("session", "an advert of another session", c3, "advert.session",
         lambda m: resign(key_of(c3, 1), m, session=bytes(32))),
        ("unsigned", "an advert that its sender did not sign", c3, "advert.signature",
         lambda m: m._replace(signature=bytes(64))),
        ("same_key_twice", "one key in both roles", c3, "advert.key",
         lambda m: resign(key_of(c3, 1), m, seal_key=m.mask_key)),
        ("key_of_another", "another client's public key", c3, "advert.key",
         lambda m: resign(key_of(c3, 1), m,
          mask_key=p.decode(p.Advert, played(c3).sent("advertise", 0, up=True), p.MisuseError).seal_key)),
        ("uncertified", "an advert without a certificate", "authority_3", "advert.member",
         lambda m: resign(key_of("authority_3", 1), m, certificate=b"")),
    ):  # fmt: skip
        yield f"advert_{name}", claimed(f"the server does not take {claim}", of, "advertise", 1, change, reason)
    again = played(c3).sent("advertise", 1, up=True)
    yield "advert_twice", case("nobody advertises twice", c3, "server.receive", 1, "ClientFault", "advert.twice",
                               extra=[letter("advertise", 1, again, up=True)])  # fmt: skip
    four = honest()[c5]["params"] | {"clients": 4}
    yield "advert_full", case("the roster is no larger than the parameters say", c5, "server.receive", 4, "ClientFault",
                              "advert.full", params=four)  # fmt: skip


def relays() -> Iterator[tuple[str, Case]]:
    """Relays that a client must not go on with."""
    c3, c5, sparse = "complete_3", "complete_5", "sparse_20"

    def dealers(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Change:
        return lambda m: m._replace(dealers=change(m.dealers))

    def sharers(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Change:
        return lambda m: m._replace(sharers=change(m.sharers))

    def listed(m: Any, sender: bytes, message: Any) -> tuple[Any, ...]:
        new = p.Sharer(sender, p.digest("share message", p.encode(message)))
        return tuple(new if s.identity == sender else s for s in m.sharers)

    def message(place: int, change: Change) -> Change:
        """Another message of one dealer, and its hash in the list."""

        def apply(m: Any) -> Any:
            dealt = m.dealers[place]
            new = change(dealt.message)
            return m._replace(
                sharers=listed(m, dealt.message.sender, new), dealers=put(m.dealers, place, dealt._replace(message=new))
            )

        return apply

    def signed(place: int, of: str = c3, **changes: Any) -> Change:
        def change(m: Any) -> Any:
            numbers = {id_of(of, i): i for i in range(len(honest()[of]["clients"]))}
            return resign(key_of(of, numbers[m.sender]), m, **changes)

        return message(place, change)

    def strange(m: Any) -> Any:
        return m._replace(sharers=(*m.sharers, p.Sharer(b"\xff" * 32, bytes(32))))

    position = 0
    first_other = next(
        i
        for i, d in enumerate(p.decode(p.Relay, played(sparse).sent("hold", 0, up=False), p.MisuseError).dealers)
        if d.message.sender != id_of(sparse, 0)
    )
    drawn = p.decode(p.Relay, played(sparse).sent("hold", 0, up=False), p.MisuseError).dealers[first_other].message
    absent = next(i for i in range(20) if i not in drawn.holders)
    elsewhere = tuple(sorted((set(drawn.holders) - {position}) | {absent}))
    table: list[tuple[str, str, str, str, Change]] = [
        ("session", "another session", c3, "relay.session", lambda m: m._replace(session=bytes(32))),
        ("repeats_sharer", "a sharer twice", c3, "relay.order", sharers(lambda x: put(x, 2, x[1]))),
        ("unordered", "sharers out of order", c3, "relay.order", sharers(lambda x: x[::-1])),
        ("stranger", "a sharer from outside the roster", c3, "relay.member", strange),
        ("repeats_dealer", "a dealer twice", c3, "relay.dealers", dealers(lambda x: put(x, 2, x[1]))),
        ("dealers_unordered", "dealers out of order", c3, "relay.dealers", dealers(lambda x: x[::-1])),
        ("unlisted_dealer", "a dealer that its list does not name", c3, "relay.listed",
         sharers(lambda x: put(x, 1))),
        ("other_message_than_listed", "a message whose hash is not the listed one", c3, "relay.listed",
         dealers(lambda x: put(x, 1, x[1]._replace(message=x[1].message._replace(seed_hash=bytes(32)))))),
        ("own_missing", "none of the client's own message", c3, "relay.own", dealers(lambda x: put(x, 0))),
        ("own_changed", "another message of the client", c3, "relay.own", signed(0, seed_hash=bytes(32))),
        ("unsigned", "a message that its dealer did not sign", c3, "relay.signature",
         message(1, lambda x: x._replace(signature=bytes(64)))),
        ("altered", "a commitment that its dealer did not sign", c3, "relay.signature",
         message(1, lambda x: x._replace(seed_hash=bytes(32)))),
        ("other_session", "a message of another session", c3, "relay.signature", signed(1, session=bytes(32))),
        ("other_roster", "a message for another roster", c3, "relay.signature", signed(1, roster=bytes(32))),
        ("holders_missing", "a dealer with a holder too few", c3, "relay.fit",
         signed(1, holders=(0, 1), key_commitments=(bytes(32),) * 2, seed_commitments=(bytes(32),) * 2,
                ciphertext_hashes=(bytes(32),) * 2)),
        ("holders_repeated", "a dealer with a holder twice", c3, "relay.fit", signed(1, holders=(0, 1, 1))),
        ("holders_unordered", "a dealer with holders out of order", c3, "relay.fit", signed(1, holders=(1, 0, 2))),
        ("holders_outside", "a dealer with a holder outside the roster", c3, "relay.fit", signed(1, holders=(0, 1, 3))),
        ("key_commitments", "a dealer with too few commitments to its key", c3, "relay.fit",
         signed(1, key_commitments=(bytes(32),) * 2)),
        ("seed_commitments", "a dealer with too many commitments to its seed", c3, "relay.fit",
         signed(1, seed_commitments=(bytes(32),) * 4)),
        ("ciphertext_hashes", "a dealer with no hashes of ciphertexts", c3, "relay.fit",
         signed(1, ciphertext_hashes=())),
        ("incomplete", "a sharer whose message is left out, on the complete graph", c5, "relay.complete",
         dealers(lambda x: put(x, 3))),
        ("ciphertext_of_another", "another dealer's ciphertext", c3, "relay.ciphertext",
         dealers(lambda x: put(x, 1, x[1]._replace(ciphertext=x[2].ciphertext)))),
        ("ciphertext_empty", "no ciphertext", c3, "relay.ciphertext",
         dealers(lambda x: put(x, 1, x[1]._replace(ciphertext=b"")))),
        ("own_ciphertext", "something in the client's own empty place", c3, "relay.ciphertext",
         dealers(lambda x: put(x, 0, x[0]._replace(ciphertext=b"x")))),
        ("too_few", "fewer sharers than the threshold", c5, "relay.threshold",
         lambda m: m._replace(sharers=m.sharers[:3], dealers=m.dealers[:3])),
        ("sparse_not_our_dealer", "a dealer that did not draw the client as its holder", sparse, "relay.fit",
         signed(first_other, sparse, holders=elsewhere)),
        ("sparse_dealer_without_itself", "a dealer that is not its own holder", sparse, "relay.fit",
         signed(first_other, sparse,
          holders=tuple(sorted((set(drawn.holders) - {ids_of(sparse).index(drawn.sender)}) | {absent})))),
    ]  # fmt: skip
    for name, claim, of, reason, change in table:
        yield f"relay_{name}", told(f"a relay with {claim} is refused", of, "hold", 0, change, reason)

    def few(m: Any) -> Any:
        """Only seven of the client's thirteen holders shared."""
        own = next(d.message for d in m.dealers if d.message.sender == id_of(sparse, 0))
        kept = {ids_of(sparse)[i] for i in own.holders[:7]} | {id_of(sparse, 0)}
        kept = set(sorted(kept)[:7]) | {id_of(sparse, 0)}
        return m._replace(
            sharers=tuple(s for s in m.sharers if s.identity in kept),
            dealers=tuple(d for d in m.dealers if d.message.sender in kept),
        )

    yield "relay_sparse_too_few", told("fewer of a client's own holders shared than its threshold", sparse, "hold", 0,
                                       few, "relay.threshold")  # fmt: skip


GROUPS = (encodings, proposals, rosters, relays)
