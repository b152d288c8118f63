"""The inputs of the vectors of private releases (spec.md §12), and what each of them is there to show."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from protocols.statistics.v1.cases import Case, agreed, double

SMALL: Case = {"dimension": 4, "classes": 3, "bits": 6, "max_images": 1000, "clients": 7}
SESSION: Case = {
    "prompt_mode": "none",
    "min_survivors": 6,
    "corrupt": 2,
    "min_contributors": 0,
    "masked": True,
    "group_column": False,
}
PROMPTS: Case = {"prompts": True, "tokens": 1, "prompt_dimension": 2, "prompt_bits": 4}
SIGMAS = {"r_diagonal": 10266, "r_upper": 7259, "c": 161, "counts": 1588}
ALONE = {"r_diagonal": 20532, "r_upper": 14518, "c": 321, "counts": 1588}
WIDER = {"r_diagonal": 11939, "r_upper": 8442, "c": 187, "counts": 1847}
DP_SGD: Case = {"sample_rate": 0.1, "noise_multiplier": 3.5, "steps": 20, "clip": 1.0, "lot": 16}
DISTRIBUTED: Case = {"count_scale": 128, "sigmas": SIGMAS}
CENTRAL: Case = {"mode": "central", "contributors": 1, "count_scale": 64, "sigmas": ALONE}
LOCAL: Case = CENTRAL | {"mode": "local"}
GROUPS: Case = {
    "unit": "group",
    "unit_images": 3,
    "count_scale": 32,
    "sigmas": {"r_diagonal": 30796, "r_upper": 21776, "c": 482, "counts": 1191},
}
TUNED: Case = {"count_scale": 128, "sigmas": WIDER, "prompts": DP_SGD}
LARGE_SIGMAS = {"r_diagonal": 16082946, "r_upper": 11372360, "c": 3927, "counts": 1215}


def segments(
    count_scale: int, unit_images: int, sigmas: dict[str, int], dimension: int = 4, classes: int = 3, bits: int = 6
) -> list[Case]:
    """The segments of a release, as its text names them."""
    d, k = dimension, unit_images * unit_images
    rows = [
        ("r_diagonal", d, k << (4 * bits)),
        ("r_upper", d * (d - 1) // 2, (k << (4 * bits)) * (d - 1) // (2 * d)),
        ("c", d * classes, k << (2 * bits)),
        ("counts", classes, k * count_scale * count_scale),
    ]
    return [
        {"name": name, "length": length, "squared_sensitivity": limit, "sigma": sigmas[name]}
        for name, length, limit in rows
    ]


def text(*, shape: dict[str, int] | None = None, sigmas: dict[str, int] = SIGMAS, **changed: Any) -> str:
    """A release's text; what is not named is that of the small session in mode `distributed`.

    Floats must be numbers that Python writes as §12.2 does.
    """
    fields: Case = {
        "mechanism": "discrete-gaussian",
        "mode": "distributed",
        "unit": "image",
        "unit_images": 1,
        "relation": "add-remove",
        "epsilon": 1.0,
        "delta": 0.0001,
        "contributors": 4,
        "count_scale": 128,
        "segments": None,
        "prompts": None,
    } | changed
    if fields["segments"] is None:
        fields["segments"] = segments(fields["count_scale"], fields["unit_images"], sigmas, **(shape or {}))
    return json.dumps(fields, separators=(",", ":"))


def proposal(release: str, parameters: Case | None = None, **changed: Any) -> Case:
    """What a client is shown of a session."""
    return {"parameters": agreed(**SMALL | (parameters or {})), "release": release, "session": SESSION | changed}


def samples(label: str, spread: int) -> dict[str, list[int]]:
    """Numbers for the noise of the small session, from -spread to spread."""
    found = {}
    for name, length in (("r_diagonal", 4), ("r_upper", 6), ("c", 12), ("counts", 3)):
        stream = hashlib.shake_256(f"{label} {name}".encode()).digest(4 * length)
        words = [int.from_bytes(stream[i : i + 4], "little") for i in range(0, len(stream), 4)]
        found[name] = [word % (2 * spread + 1) - spread for word in words]
    return found


def constant(**values: int) -> dict[str, list[int]]:
    """The same number in each entry of a segment."""
    lengths = {"r_diagonal": 4, "r_upper": 6, "c": 12, "counts": 3}
    return {name: [values.get(name, 0)] * length for name, length in lengths.items()}


def good_cases() -> dict[str, tuple[str, str, Case]]:
    """Name -> claim, operation, input."""
    found: dict[str, tuple[str, str, Case]] = {}

    def good(name: str, operation: str, claim: str, **given: Any) -> None:
        found[f"good_{name}"] = (claim, operation, given)

    numbers = [1.0, 0.1, 1 / 3, 8.0, 1e-4, 1e-5, 1.5e-5, 2 / 3 * 1e-4, 9.99e-6, 1e-6, 1.2345e-9, 123456789.125, 1e15]
    numbers += [123456789012345.6, 9999999999999998.0, 1e16, 1.5e17, 1e21, 1e22, 2.0**64, 5e-324, 2.0**-1022]
    numbers += [1.7976931348623157e308, 0.30000000000000004, 100.0, 0.9978704191502015]
    claim = "fewest digits that read back; plain from 10^-5 to below 10^16, else with an exponent"
    good("float_text", "float_text", claim, numbers=[double(x) for x in numbers])

    def released(name: str, claim: str, release: str, parameters: Case | None = None, **session: Any) -> None:
        good(f"release_{name}", "release", claim, **proposal(release, parameters, **session))

    released("distributed", "noise of four honest clients together, which the masks hide", text(**DISTRIBUTED))
    released("central", "the server's noise, after the sum: segments are those of exact sums", text(**CENTRAL))
    released("local", "each client's noise is enough by itself", text(**LOCAL))
    released("local_unmasked", "and then needs no masks", text(**LOCAL), masked=False)
    claim = "groups of up to three images, at a client whose images have groups"
    released("groups", claim, text(**GROUPS), group_column=True)
    claim = "the noise of fewer clients than are honest may be counted on"
    fewer = {name: 2 * sigma for name, sigma in SIGMAS.items()}
    released("fewer_contributors", claim, text(contributors=1, sigmas=fewer))
    claim = "prompts by DP-SGD in the same vector, as wide as without noise"
    released("tuned_prompts", claim, text(**TUNED), PROMPTS, prompt_mode="local")
    claim = "in two phases the session that sums prompts has no other noise than theirs"
    alone = PROMPTS | {"statistics": False}
    released("prompts_session", claim, text(**TUNED), alone, prompt_mode="two-phase")
    released("two_phase", "the statistics of a round in two phases", text(**TUNED), prompt_mode="two-phase")
    released("public_prompts", "public prompts cost nothing", text(**DISTRIBUTED), prompt_mode="public")
    most = dict.fromkeys(SIGMAS, 2**40)
    released("most_noise", "the largest sigma, and counts on the finest grid", text(count_scale=2**32, sigmas=most))
    paper = {"dimension": 512, "classes": 100, "bits": 12}
    shown = text(
        epsilon=2.9997782620314855,
        delta=0.000001,
        contributors=6,
        count_scale=256,
        sigmas=LARGE_SIGMAS,
        shape=paper,
    ).replace('"delta":1e-06', '"delta":1e-6')
    parameters = paper | {"max_images": 50_000, "clients": 10}
    claim = "CLIP ViT-B/16, 100 classes, ten clients, with all digits of epsilon"
    released("of_the_paper", claim, shown, parameters, min_survivors=8)
    claim = "a sensitivity beyond 64 bits is written out as any other"
    fine = {"bits": 24, "max_images": 1000}
    loud = {"r_diagonal": 2**40, "r_upper": 2**40, "c": 2**32, "counts": 3}
    shown = text(
        unit="group", unit_images=4096, count_scale=1, sigmas=loud, shape={"bits": 24}, epsilon=1e300, delta=0.0001
    ).replace('"epsilon":1e+300', '"epsilon":1e300')
    released("beyond_64_bits", claim, shown, fine, group_column=True)

    def cost(name: str, claim: str, release: str) -> None:
        good(f"rho_{name}", "rho", claim, release=release)

    cost("distributed", "with sigma of the diagonal near sqrt(2) times that off it, all points cost the same", text())
    skewed = SIGMAS | {"r_diagonal": 3000}
    cost("one_axis", "little noise on the diagonal: a point on one axis costs the most", text(sigmas=skewed))
    skewed = SIGMAS | {"r_upper": 3000}
    cost("all_equal", "little noise off it: a point with equal entries costs the most", text(sigmas=skewed))
    cost("groups", "three images cost nine times as much", text(**GROUPS))
    ones = dict.fromkeys(SIGMAS, 1)
    cost("sigma_1", "what a sum of discrete Gaussians costs more than one; at sigma 1 it shows", text(sigmas=ones))
    twos = dict.fromkeys(SIGMAS, 2)
    cost("sigma_2", "and at sigma 2 it nearly vanishes", text(sigmas=twos))
    cost("sigma_1_alone", "one contributor adds one discrete Gaussian", text(sigmas=ones, contributors=1))

    def bounded(name: str, claim: str, sigma: int, clients: int, entries: int) -> None:
        good(f"tail_{name}", "tail", claim, sigma=sigma, clients=clients, entries=entries)

    bounded("small", "the small session", 7259, 7, 25)
    bounded("one", "one entry, one client, the least noise", 3, 1, 1)
    bounded("large", "the vector of the paper with 10,000 clients", 11_372_360, 10_000, 182_628)
    bounded("most", "the most noise of the most clients on the longest vector", 2**40, 10_000, 2**31)

    def noisy(name: str, claim: str, clients: list[Case], release: str, **fields: Any) -> None:
        agreement = agreed(**SMALL | fields)
        good(f"noisy_{name}", "noisy", claim, parameters=agreement, release=release, clients=clients)

    q = [[[64, 0, 0, 0], [-32, 32, 32, -32]], [[0, -5, 7, 11]]]
    labels = [[0, 2], [2]]
    held = [{"q": points, "labels": its} for points, its in zip(q, labels, strict=True)]
    silent = [client | {"noise": constant()} for client in held]
    noisy("zero", "noise that is zero everywhere shows the exact part, with counts on their grid", silent, text())
    drawn = [client | {"noise": samples(f"client {i}", 20_000)} for i, client in enumerate(held)]
    noisy("drawn", "two clients with noise of about its usual size", drawn, text())
    minus = constant(r_diagonal=-30_000, r_upper=-20_000, c=-400, counts=-4000)
    below = [client | {"noise": minus} for client in held]
    claim = "a negative diagonal and negative counts are read as what they are"
    noisy("negative", claim, below, text())
    plus = constant(counts=100_000)
    above = [client | {"noise": plus} for client in held]
    claim = "counts that add up to more than the cap on images are no error under noise"
    noisy("more_than_the_cap", claim, above, text())
    for name, sign in (("largest", 1), ("smallest", -1)):
        values = dict.fromkeys(SIGMAS, sign * 2**23 - (sign + 1) // 2)  # all are three bytes wide
        only = [{"q": [], "labels": [], "noise": constant(**values)}, {"q": [], "labels": [], "noise": constant()}]
        noisy(f"{name}_entries", f"the {name} number of each width, from a client without images", only, text())
    half, back = (constant(**dict.fromkeys(SIGMAS, end)) for end in (2**22, -(2**22)))
    three = [{"q": [[1, 2, 3, 4]], "labels": [1], "noise": noise} for noise in (half, half, back)]
    noisy("passes_the_limit", "a partial sum may wrap if the whole does not", three, text())
    prompted = [client | {"prompts": [[3, -16]]} for client in drawn]
    noisy("prompts", "prompts get no noise of this kind", prompted, text(**TUNED), **PROMPTS)
    exact = [{"q": [[64, 0, 0, 0]], "labels": [1]}, {"q": [[0, 0, 0, -64]], "labels": [0]}]
    noise = samples("server", 40_000) | {"counts": [-5000, 7, 0]}
    good(
        "central",
        "central",
        "clients send exact sums; the server adds noise once to the total",
        parameters=agreed(**SMALL),
        release=text(**CENTRAL),
        clients=exact,
        noise=noise,
    )

    images = [bytes([i, 7 * i % 256, 3]).hex() for i in (9, 4, 1, 200, 17, 4, 33, 90)]
    labels_of, groups = [0, 1, 0, 1, 1, 1, 0, 0], [5, 5, 5, 0, 5, 5, 2, 2]

    def capped(name: str, claim: str, order: list[int], unit_images: int) -> None:
        shown = {
            "images": [images[i] for i in order],
            "labels": [labels_of[i] for i in order],
            "groups": [groups[i] for i in order],
        }
        good(f"cap_{name}", "cap", claim, **shown, unit_images=unit_images)

    whole = list(range(8))
    capped("two", "of a group of five the two with the smallest hashes, of smaller groups all", whole, 2)
    capped("reversed", "the same ones in another order", whole[::-1], 2)
    capped("without_a_group", "and the same ones without another group", [0, 1, 2, 4, 5], 2)
    capped("one", "one of each", whole, 1)
    capped("all", "a cap that no group reaches", whole, 5)

    def spent(name: str, claim: str, others: list[str], release: str, epsilon: float, delta: float = 0.0001) -> None:
        limits = {"epsilon": double(epsilon), "delta": double(delta), "max_images": SMALL["max_images"]}
        good(f"spend_{name}", "spend", claim, others=others, release=release, **limits)

    spent("first", "a first release within the limit", [], text(), 1.0)
    spent("second", "two releases that together cost less than twice the epsilon", [text()], text(), 1.6)
    spent("smaller_delta", "the policy's delta counts, and not that of the release", [], text(), 1.2, 0.00001)
    spent("exact_again", "exact sums after exact sums are another rule's affair", [""], "", 0.0)
    return found


def bad_cases() -> dict[str, tuple[str, str, Case, str]]:
    """Name -> claim, operation, input, error; of a PolicyRefusal, with the rule that is broken."""
    found: dict[str, tuple[str, str, Case, str]] = {}

    def bad(name: str, operation: str, error: str, claim: str, **given: Any) -> None:
        found[f"bad_{name}"] = (claim, operation, given, error)

    def refused(name: str, rule: str, claim: str, release: str, parameters: Case | None = None, **session: Any) -> None:
        given = proposal(release, parameters, **session)
        bad(f"release_{name}", "release", f"PolicyRefusal {rule}", claim, **given)

    sound = text()

    def form(name: str, claim: str, release: str) -> None:
        if release == sound:
            raise ValueError(f"{name} is the sound text")
        refused(f"form_{name}", "form", claim, release)

    form("no_json", "a release is a JSON text", "dp")
    form("null", "a release is an object", "null")
    form("list", "a release is an object", f"[{sound}]")
    form("deep", "nesting is bounded", "[" * 2000)
    form("space", "there is no space", sound.replace(":", ": ", 1))
    form("newline", "there is nothing after the text", sound + "\n")
    form("twice", "there is one release", sound + sound)
    unit = '"unit":"image",'
    form("order", "fields are in order", "{" + unit + sound[1:].replace(unit, ""))
    form("field_missing", "no field is missing", sound.replace(unit, ""))
    form("field_unknown", "no field is added", sound[:-1] + ',"note":""}')
    form("field_repeated", "no field is repeated", sound.replace(unit, unit + unit))
    form("segment_field_unknown", "nor in a segment", sound.replace('"name":', '"note":0,"name":', 1))
    form("escape", "strings have no escapes", sound.replace('"image"', '"\\u0069mage"'))
    form("exponent", "numbers from 10^-5 on have no exponent", sound.replace("0.0001", "1e-4"))
    form("two_digit_exponent", "an exponent has no zero in front", sound.replace("0.0001", "1e-06"))
    form("plain", "numbers below 10^-5 have an exponent", sound.replace("0.0001", "0.000001"))
    form("zeros", "a fraction ends in no zero", sound.replace("0.0001", "0.00010"))
    form("digits", "there are no more digits than it takes", sound.replace("0.0001", "0.00010000000000000000479"))
    form("integer_epsilon", "binary64 numbers have a point or an exponent", sound.replace("1.0", "1"))
    form("capital", "the exponent is a small e", sound.replace("0.0001", "1E-6"))
    form("too_large", "a number is finite", sound.replace("1.0", "1e400"))
    form("nan", "a number is finite", sound.replace("1.0", "NaN"))
    form("float_for_integer", "integers have no point", sound.replace('"contributors":4', '"contributors":4.0'))
    form("integer_with_exponent", "integers have no exponent", sound.replace('"contributors":4', '"contributors":4e0'))
    form("string_for_integer", "integers are no strings", sound.replace('"contributors":4', '"contributors":"4"'))
    form("boolean_for_integer", "integers are no booleans", sound.replace('"unit_images":1', '"unit_images":true'))
    form("prompts_false", "no prompts are null", sound.replace("null", "false"))
    form("prompts_empty", "prompts have all their fields", sound.replace("null", "{}"))
    form("segments_null", "segments are a list", text(segments=0).replace(":0,", ":null,"))

    refused("census", "census", "exact presence bits would void the claim", sound, min_contributors=2)
    claim = "unmasked, the server sees each client with a part of the noise that it needs"
    refused("unmasked", "masks", claim, sound, masked=False)
    claim = "unmasked, the hash of a transcript would tell exact payloads apart"
    refused("central_unmasked", "masks", claim, text(**CENTRAL), masked=False)
    refused("mechanism", "mechanism", "there is one mechanism", text(mechanism="gaussian"))
    refused("relation", "relation", "there is one relation of neighbours", text(relation="replace-one"))
    refused("mode", "mode", "there are three modes", text(mode="shuffled"))
    refused("unit", "unit", "there are two units", text(unit="person"))

    refused("unit_of_two_images", "unit_images", "an image is one image", text(unit_images=2))
    for number in (0, 4097, -3):
        claim = "a group has from 1 to 4096 images that count"
        release = text(unit="group", unit_images=number)
        name = f"group_of_{number}".replace("-", "minus_")
        refused(name, "unit_images", claim, release, group_column=True)
    for name, epsilon in (("zero", 0.0), ("negative", -1.0)):
        refused(f"epsilon_{name}", "epsilon", "epsilon is above 0", text(epsilon=epsilon))
    for name, delta in (("zero", 0.0), ("negative", -0.1), ("one_over_n", 0.001), ("half", 0.5)):
        refused(f"delta_{name}", "delta", "delta is above 0 and below 1/N", text(delta=delta))

    loud = {name: 4 * sigma for name, sigma in SIGMAS.items()}
    for number in (0, -1, 5):
        claim = "no more noise is counted on than honest survivors add, and that of somebody"
        release = text(contributors=number, sigmas=loud)
        refused(f"contributors_{number}".replace("-", "minus_"), "contributors", claim, release)
    for mode in ("local", "central"):
        claim = "one party's noise is counted once"
        refused(f"contributors_{mode}", "contributors", claim, text(mode=mode, contributors=2, sigmas=loud))
    claim = "a session that lets more clients be corrupt has less noise"
    refused("contributors_corrupt", "contributors", claim, sound, corrupt=3)
    refused("contributors_survivors", "contributors", "and so has one of fewer survivors", sound, min_survivors=5)
    for name, number in (("zero", 0), ("negative", -128), ("too_fine", 2**32 + 1)):
        claim = "a count has from 1 to 2^32 grid units"
        refused(f"count_scale_{name}", "count_scale", claim, text(count_scale=number))

    rows = segments(128, 1, SIGMAS)
    wrong: dict[str, tuple[str, list[Case]]] = {
        "none": ("every segment has noise", []),
        "counts_missing": ("counts without noise would void the claim", rows[:3]),
        "order": ("segments are in the order of the vector", [rows[1], rows[0], *rows[2:]]),
        "twice": ("a segment is named once", [*rows, rows[3]]),
        "prompts": ("prompts are no segment of a release", [*rows, rows[3] | {"name": "prompts", "length": 2}]),
        "length": ("a length is the session's", [rows[0] | {"length": 5}, *rows[1:]]),
        "name": ("a name is the session's", [rows[0] | {"name": "r"}, *rows[1:]]),
    }
    for row, segment in enumerate(rows):
        less = segment | {"squared_sensitivity": segment["squared_sensitivity"] - 1}
        claim = "a sensitivity may not be understated"
        wrong[f"sensitivity_of_{segment['name']}"] = (claim, [*rows[:row], less, *rows[row + 1 :]])
    more = rows[2] | {"squared_sensitivity": 4097}
    wrong["sensitivity_overstated"] = ("nor overstated: there is one text", [*rows[:2], more, rows[3]])
    for name, (claim, changed) in wrong.items():
        refused(f"segments_{name}", "segments", claim, text(segments=changed))
    claim = "a group of three moves three times as much as an image"
    single = text(unit="group", unit_images=3, segments=segments(128, 1, SIGMAS))
    refused("segments_of_an_image", "segments", claim, single, group_column=True)
    other = {"dimension": 5, "classes": 4, "bits": 7}
    for name, value in other.items():
        claim = "a release describes the session's vector and no other"
        refused(f"segments_other_{name}", "segments", claim, sound, {name: value})

    for name, sigma in (("two", 2), ("zero", 0), ("negative", -10266), ("too_large", 2**40 + 1)):
        claim = "sigma is from 3 to 2^40"
        refused(f"sigma_{name}", "sigma", claim, text(sigmas=SIGMAS | {"r_upper": sigma}))

    for mode, parameters in (("local", PROMPTS), ("two-phase", {})):
        claim = "prompts tuned without privacy void the bound of every feature"
        refused(f"prompts_{mode.replace('-', '_')}", "prompts", claim, sound, parameters, prompt_mode=mode)
    for mode in ("none", "public"):
        claim = "prompts that nobody tunes are not accounted for"
        refused(f"prompts_{mode}", "prompts", claim, text(**TUNED), prompt_mode=mode)
    claim = "DP-SGD hides one image, and not a group"
    both = text(**GROUPS, prompts=DP_SGD)
    refused("prompts_groups", "prompts", claim, both, prompt_mode="two-phase", group_column=True)
    claim = "nor one of which a single image counts in the sums"
    alone = text(unit="group", count_scale=128, sigmas=WIDER, prompts=DP_SGD)
    refused("prompts_groups_of_one", "prompts", claim, alone, prompt_mode="two-phase", group_column=True)
    beyond: dict[str, Case] = {
        "sample_rate_zero": {"sample_rate": 0.0},
        "sample_rate_too_small": {"sample_rate": 0.0000005},
        "sample_rate_above_one": {"sample_rate": 1.5},
        "noise_zero": {"noise_multiplier": 0.0},
        "noise_negative": {"noise_multiplier": -3.5},
        "no_steps": {"steps": 0},
        "too_many_steps": {"steps": 2**20 + 1},
        "clip_zero": {"clip": 0.0},
        "lot_zero": {"lot": 0},
    }
    for name, values in beyond.items():
        claim = "the numbers of DP-SGD have limits"
        release = text(count_scale=128, sigmas=WIDER, prompts=DP_SGD | values).replace("e-07", "e-7")
        refused(f"tuning_{name}", "tuning", claim, release, prompt_mode="two-phase")

    refused("claim_epsilon", "claim", "the noise must hold the epsilon that is claimed", text(epsilon=0.9))
    refused("claim_delta", "claim", "and at the delta that is claimed", text(delta=0.00005).replace("5e-05", "0.00005"))
    quiet = {"r_diagonal": 9000, "r_upper": 6400, "c": 161, "counts": 1588}
    refused("claim_sigma", "claim", "less noise claims less", text(sigmas=quiet))
    refused("claim_contributors", "claim", "and so does that of fewer contributors", text(contributors=3))
    claim = "where the unit is a group, images have groups"
    refused("groups_without_column", "groups", claim, text(**GROUPS))

    fine = {"bits": 24, "max_images": 2**15 - 1}
    most = {"r_diagonal": 2**40, "r_upper": 2**40, "c": 2**32, "counts": 3}
    shown = text(delta=0.00001, epsilon=1e300, count_scale=1, sigmas=most, shape={"bits": 24})
    shown = shown.replace("1e+300", "1e300").replace('"delta":1e-05', '"delta":0.00001')
    bad(
        "release_too_wide",
        "release",
        "OverflowBudgetError",
        "with noise the sum must still fit eight bytes",
        **proposal(shown, fine | {"clients": 10_000}),
    )

    agreement = agreed(**SMALL)
    for name, entry in (("above", 2**23), ("below", -(2**23) - 1)):
        clients = [{"q": [], "labels": [], "noise": constant(c=entry)}] * 2
        claim = "an entry beyond its width is not sent, and not wrapped"
        bad(
            f"noisy_{name}",
            "noisy",
            "OverflowBudgetError",
            claim,
            parameters=agreement,
            release=sound,
            clients=clients,
        )

    def unspent(
        name: str, rule: str, claim: str, others: list[str], release: str, epsilon: float, delta: float = 0.0001
    ) -> None:
        limits = {"epsilon": double(epsilon), "delta": double(delta), "max_images": SMALL["max_images"]}
        bad(f"spend_{name}", "spend", f"PolicyRefusal {rule}", claim, others=others, release=release, **limits)

    unspent("too_much", "budget", "one release costs more than the limit", [], sound, 0.9)
    unspent("second", "budget", "a second release adds to the first", [sound], sound, 1.0)
    unspent("third", "budget", "and a third to both", [sound, sound], sound, 1.6)
    claim = "a policy that grants nothing grants no private release"
    unspent("no_budget", "no budget", claim, [], sound, 0.0, 0.0)
    claim = "a delta of one over the cap would allow to publish an image"
    unspent("large_delta", "no budget", claim, [], sound, 100.0, 0.001)
    claim = "a claim for an image says nothing of a group"
    unspent("other_unit", "claims of another kind have left", claim, [text(**GROUPS)], sound, 100.0)
    claim = "a server that was trusted with exact sums has them"
    unspent("after_central", "claims of another kind have left", claim, [text(**CENTRAL)], sound, 100.0)
    unspent("central_after", "claims of another kind have left", claim, [text(**LOCAL)], text(**CENTRAL), 100.0)
    claim = "what has left exactly cannot leave privately any more"
    unspent("after_exact", "exact sums have left", claim, ["", sound], sound, 100.0)
    claim = "exact sums would void what has left privately"
    unspent("exact_after_private", "private sums have left", claim, [sound], "", 100.0)
    return found
