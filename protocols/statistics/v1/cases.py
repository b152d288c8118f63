"""The inputs of the vectors, in the JSON form of spec.md §9, and what each of them is there to show.

Inputs that look random are SHAKE-256 of their label.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Case = dict[str, Any]


def single(value: float) -> str:
    """A binary32 number as 8 hexadecimal digits."""
    return struct.pack(">f", value).hex()


def double(value: float) -> str:
    """A binary64 number as 16 hexadecimal digits."""
    return struct.pack(">d", value).hex()


def number(digits: str) -> float:
    """The number of 8 or 16 hexadecimal digits."""
    value: float = struct.unpack(">f" if len(digits) == 8 else ">d", bytes.fromhex(digits))[0]
    return value


def each(convert: Callable[[Any], Any], rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """A matrix, entry by entry."""
    return [[convert(entry) for entry in row] for row in rows]


def draw(label: str, rows: int, columns: int) -> list[list[float]]:
    """Numbers between -8 and 8 that binary32 holds exactly."""
    stream = hashlib.shake_256(label.encode()).digest(4 * rows * columns)
    values = [(int.from_bytes(stream[i : i + 4], "little", signed=True) >> 8) / 2**20 for i in range(0, len(stream), 4)]
    return [values[i * columns : (i + 1) * columns] for i in range(rows)]


def agreed(**fields: Any) -> Case:
    """The JSON form of parameters; what is not named has a small or usual value."""
    usual = {
        "statistics": True,
        "prompts": False,
        "dimension": 2,
        "classes": 2,
        "bound": 1.0,
        "bits": 12,
        "normalise": True,
        "max_images": 1000,
        "clients": 3,
        "tokens": 1,
        "prompt_dimension": 1,
        "prompt_bound": 4.0,
        "prompt_bits": 24,
    }
    return {name: double(v) if isinstance(v, float) else v for name, v in (usual | fields).items()}


def client(features: list[list[float]], labels: list[int], prompts: list[list[float]] | None = None) -> Case:
    """The JSON form of what a client holds."""
    found: Case = {"features": each(single, features), "labels": labels} if labels else {}
    return found | ({"prompts": each(single, prompts)} if prompts else {})


def segment(name: str, length: int, width: int, signed: bool) -> Case:
    """The JSON form of a segment."""
    return {"name": name, "length": length, "width": width, "signed": signed}


def payload(segments: list[Case], arrays: dict[str, list[int]]) -> str:
    """Residues, little-endian, whether or not an honest client would send them."""
    parts = [(v % 256 ** s["width"]).to_bytes(s["width"], "little") for s in segments for v in arrays[s["name"]]]
    return b"".join(parts).hex()


def masked(label: str, segments: list[Case], arrays: dict[str, list[int]]) -> list[str]:
    """Three payloads of which any two are noise, and whose sum stands for `arrays`."""
    noise: list[dict[str, list[int]]] = []
    for which in range(2):
        stream = iter(hashlib.shake_256(f"{label} {which}".encode()).digest(8 * sum(map(len, arrays.values()))))
        words = {
            name: [sum(next(stream) << 8 * i for i in range(8)) for _ in values] for name, values in arrays.items()
        }
        noise.append(words)
    rest = {
        n: [v - a - b for v, a, b in zip(values, noise[0][n], noise[1][n], strict=True)] for n, values in arrays.items()
    }
    return [payload(segments, part) for part in (*noise, rest)]


def good_cases() -> dict[str, tuple[str, str, Case]]:
    """Name -> claim, operation, input."""
    found: dict[str, tuple[str, str, Case]] = {}

    def good(name: str, operation: str, claim: str, **given: Any) -> None:
        found[f"good_{name}"] = (claim, operation, given)

    paper = agreed(dimension=512, classes=100, max_images=50_000, clients=10)
    paper |= {"prompts": True, "tokens": 10, "prompt_dimension": 768}
    good(
        "parameters_of_the_paper",
        "parameters",
        "CLIP ViT-B/16, 100 classes, ten clients, ten prompts, at most 50,000 images",
        parameters=paper,
    )
    for name, images in (("below", 255), ("above", 256)):
        claim = f"a bound of {images * 256} for the diagonal, beside the largest number of two bytes"
        good(f"parameters_{name}_two_bytes", "parameters", claim, parameters=agreed(bits=4, max_images=images))
    widest = agreed(bits=24, max_images=2**15 - 1)
    good("parameters_largest_cap", "parameters", "the highest cap on images at 24 bits", parameters=widest)
    few = agreed(dimension=2**16, classes=1, bits=8, bound=0.3)
    good("parameters_largest_dimension", "parameters", "the largest dimension; half of 2^b is margin", parameters=few)
    only = agreed(statistics=False, prompts=True, tokens=2, prompt_dimension=3, clients=256, prompt_bits=32)
    good("parameters_prompts_only", "parameters", "a session that sums prompts alone", parameters=only)

    def quantised(name: str, claim: str, features: list[list[float]], **fields: Any) -> None:
        given = {"parameters": agreed(dimension=len(features[0]), **fields), "features": each(single, features)}
        good(f"quantise_{name}", "quantise", claim, **given)

    quantised("normalised", "features on the sphere", draw("normalised", 4, 5))
    quantised(
        "bound",
        "a bound that is no power of two changes what is shown, not the grid point",
        draw("normalised", 2, 5),
        bound=0.3,
    )
    mixed = [[0.25, -0.5, 0.125], [1.0, 0.0, 0.0], [-3.0, 4.0, 12.0], [0.0, 0.0, 0.0], [0.0, 1.5, 0.0]]
    quantised("clipped", "inside the ball, on it, outside it, zero, outside again", mixed, normalise=False)
    quantised("clipped_bound", "clipping at a radius of 2.5", draw("clipped", 4, 3), normalise=False, bound=2.5)
    extremes = [[3.0e38, -3.0e38, 1.0e-45], [1.0e-45, 0.0, -1.0e-45], [-0.0, 0.0, -0.0], [-1.0, -2.0, -3.0]]
    quantised(
        "extremes",
        "huge, subnormal, zero of either sign, all negative",
        [[number(single(v)) for v in row] for row in extremes],
    )
    hot = [[0.0] * i + [sign] + [0.0] * (8 - i) for i, sign in ((0, 1.0), (8, -1.0))]
    quantised("tie_down", "2.5 and -2.5 go to the even 2 and -2", hot, bits=2)
    hot = [[0.0] * i + [sign] + [0.0] * (24 - i) for i, sign in ((0, 1.0), (24, -1.0))]
    quantised("tie_up", "1.5 and -1.5 go to the even 2 and -2", hot, bits=2)
    ties = [[0.25, -0.25, 0.5, -0.5] + [0.0] * 12]
    quantised("tie_clipped", "1.5 and -1.5 go to 2 and -2 inside the ball too", ties, bits=3, normalise=False)
    for dimension, bits in ((4, 5), (16, 12)):
        claim = "halves that all round outwards meet the norm 2^b exactly"
        quantised(f"bound_met_{dimension}", claim, [[1.0] * dimension, [-2.0] * dimension], bits=bits)
    quantised("fine", "the finest grid", draw("fine", 3, 4), bits=24)
    quantised("long_rows", "a row long enough for every step of the recommended order", draw("long", 2, 300), bits=16)

    edge = [[2.6, 3.04], [-2.6, -3.04], [2.4, 3.04], [0.5, -1.5]]
    claim = "rounded outside the ball of 4, a row is truncated instead; one that fits is not"
    good("round_truncates", "round", claim, bits=2, x=each(double, edge))

    halves = agreed(prompts=True, statistics=False, tokens=2, prompt_dimension=3, prompt_bits=2)
    values = [[0.5, 1.5, 2.5], [-3.5, 4.0, -4.0]]
    good(
        "prompts_ties",
        "quantise_prompts",
        "halves to even; the bound itself is allowed",
        parameters=halves,
        prompts=each(single, values),
    )
    usual = agreed(prompts=True, statistics=False, tokens=2, prompt_dimension=4, prompt_bound=8.5)
    good(
        "prompts",
        "quantise_prompts",
        "a bound that is no power of two",
        parameters=usual,
        prompts=each(single, draw("prompts", 2, 4)),
    )
    total = [[25_165_825, -50_331_648, 1, 0]]
    four = agreed(prompts=True, statistics=False, prompt_dimension=4)
    good(
        "mean_prompt",
        "mean_prompt",
        "the mean of three clients, rounded to binary32",
        parameters=four,
        clients=3,
        total=total,
    )

    def summed(name: str, claim: str, q: list[list[int]], labels: list[int], **fields: Any) -> None:
        good(f"accumulate_{name}", "accumulate", claim, parameters=agreed(**fields), q=q, labels=labels)

    points = [[3, -4, 0], [0, 0, 0], [-16, 0, 0], [1, 2, -3]]
    summed("empty_class", "class 1 of three has no image", points, [0, 2, 2, 0], dimension=3, classes=3, bits=4)
    summed("one_image", "one image", [[-5, 7]], [1], bits=4)
    summed("no_images", "no images give zeros", [], [], bits=4)
    claim = "the sum of squares is odd and above 2^53: one binary64 product of all rows would round it"
    summed("beyond_53_bits", claim, [[2**24 - 1, -5]] * 35, [0] * 35, bits=24)

    widths = range(1, 9)
    every = [segment(f"signed_{w}", 2, w, True) for w in widths] + [
        segment(f"unsigned_{w}", 2, w, False) for w in widths
    ]
    limits = {f"signed_{w}": [-(2 ** (8 * w - 1)), 2 ** (8 * w - 1) - 1] for w in widths}
    limits |= {f"unsigned_{w}": [0, min(2 ** (8 * w), 2**63) - 1] for w in widths}
    good("encode_limits", "encode", "the least and the largest number of every width", segments=every, arrays=limits)
    good(
        "add_masked",
        "add",
        "payloads of noise whose sum is the same numbers",
        segments=every,
        payloads=masked("masks", every, limits),
    )
    narrow = [segment("a", 3, 1, True), segment("b", 1, 8, False)]
    parts = [[100, -100, -1], [27, -28, 1], [-127, 100, 0]]
    payloads = [payload(narrow, {"a": a, "b": [2**61]}) for a in parts]
    good(
        "add_passes_the_limit",
        "add",
        "a partial sum may wrap if the whole does not",
        segments=narrow,
        payloads=payloads,
    )

    big = [[2**53 + 1, -(2**53) - 3], [-(2**53) - 3, 2**62 + 2**9]]
    good(
        "moments_beyond_53_bits",
        "moments",
        "integers above 2^53 are rounded to even before they are divided",
        parameters=agreed(bits=24),
        r=big,
        c=[[5, -7], [0, 2**30]],
        counts=[3, 0],
    )
    good(
        "moments_square_of_the_scale",
        "moments",
        "s is multiplied by itself; a library's power of two may round otherwise",
        parameters=agreed(bits=10, bound=1.02, max_images=1000),
        r=[[1000003 * i for i in (1, 7)], [1000003 * i for i in (7, 11)]],
        c=[[1, 2], [3, 4]],
        counts=[3, 4],
    )

    toy = agreed(dimension=4, bits=4, max_images=10)
    held = [client([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, -2.0, 0.0]], [0, 1]), client([[1.0, 1.0, 1.0, 1.0]], [0])]
    good("example", "session", "the worked example of spec.md", parameters=toy, clients=held)
    three = [
        client(draw(f"client {i}", n, 5), labels)
        for i, (n, labels) in enumerate([(4, [0, 3, 3, 0]), (1, [1]), (3, [3, 3, 3])])
    ]
    good(
        "session_statistics",
        "session",
        "three clients, one with one image, and class 2 without images",
        parameters=agreed(dimension=5, classes=4, bits=10, max_images=64),
        clients=three,
    )
    good(
        "session_at_the_cap",
        "session",
        "exactly as many images as the cap",
        clients=three,
        parameters=agreed(dimension=5, classes=4, max_images=8, bound=3.0, normalise=False),
    )
    good("census", "census", "two of three classes, one of them twice", labels=[2, 0, 2], classes=3, clients=255)
    good("census_wide", "census", "256 clients need a second byte", labels=[1], classes=2, clients=256)
    tuned = [[[v / 4 for v in row] for row in draw(f"tokens {i}", 2, 3)] for i in range(3)]
    whole = [client(draw(f"both {i}", 2, 3), [i, 0], tuned[i]) for i in range(3)]
    both = {"prompts": True, "dimension": 3, "classes": 3, "tokens": 2, "prompt_dimension": 3}
    good("session_both", "session", "statistics and prompts in one vector", parameters=agreed(**both), clients=whole)
    good(
        "session_prompts",
        "session",
        "prompts alone",
        parameters=agreed(**both | {"statistics": False}),
        clients=[client([], [], prompts) for prompts in tuned],
    )
    return found


def bad_cases() -> dict[str, tuple[str, str, Case, str]]:
    """Name -> claim, operation, input, error."""
    found: dict[str, tuple[str, str, Case, str]] = {}

    def bad(name: str, operation: str, error: str, claim: str, **given: Any) -> None:
        found[f"bad_{name}"] = (claim, operation, given, error)

    def limits(name: str, claim: str, error: str = "InputError", **fields: Any) -> None:
        bad(f"parameters_{name}", "parameters", error, claim, parameters=agreed(**fields))

    limits("no_bits", "a grid has at least one bit", bits=0)
    limits("25_bits", "binary32 features have no more than 24 bits to record", bits=25, max_images=1)
    limits("too_few_bits", "rounding must leave something of 2^b", dimension=2048, bits=4)
    for name, bound in (("nan", float("nan")), ("zero", 0.0), ("infinite", float("inf")), ("tiny", 1e-30)):
        limits(f"bound_{name}", "the bound is an ordinary positive number", bound=bound)
    limits("one_dimension", "R has an off-diagonal entry", dimension=1)
    limits("no_classes", "there is a class", classes=0)
    limits("no_images", "the cap allows an image", max_images=0)
    claim = "a cap that 63 bits cannot sum is refused before anything is sent"
    limits("cap_too_high", claim, "OverflowBudgetError", bits=24, max_images=2**15)
    limits("33_prompt_bits", "prompts have at most 32 bits", prompts=True, prompt_bits=33)
    limits(
        "prompt_bound_nan", "the prompt bound is an ordinary positive number", prompts=True, prompt_bound=float("nan")
    )
    limits("no_tokens", "a session that sums prompts has tokens", prompts=True, tokens=0)

    for name, value in (("nan", float("nan")), ("infinite", float("-inf"))):
        rows = each(single, [[1.0, 2.0, 3.0], [1.0, value, 3.0]])
        claim = "a feature that is not finite enters no sum"
        bad(f"quantise_{name}", "quantise", "InputError", claim, parameters=agreed(dimension=3), features=rows)
    bad(
        "quantise_other_dimension",
        "quantise",
        "MisuseError",
        "all features have the agreed dimension",
        parameters=agreed(dimension=3),
        features=each(single, [[1.0, 2.0]]),
    )
    tuned = agreed(prompts=True, statistics=False, prompt_dimension=2)
    above = "40800001"  # the next binary32 number after 4
    bad(
        "prompts_beyond_bound",
        "quantise_prompts",
        "OverflowBudgetError",
        "no prompt entry is larger than its bound",
        parameters=tuned,
        prompts=[[single(0.0), above]],
    )
    bad(
        "prompts_nan",
        "quantise_prompts",
        "InputError",
        "a prompt that is not finite enters no sum",
        parameters=tuned,
        prompts=each(single, [[float("nan"), 0.0]]),
    )
    bad(
        "mean_prompt_too_large",
        "mean_prompt",
        "OverflowBudgetError",
        "two clients cannot have sent this",
        parameters=tuned,
        clients=2,
        total=[[0, -2 * 2**24 - 1]],
    )
    bad(
        "mean_prompt_of_nobody",
        "mean_prompt",
        "MisuseError",
        "a mean is over somebody",
        parameters=tuned,
        clients=0,
        total=[[0, 0]],
    )

    small = agreed(bits=4)
    for name, label in (("too_large", 2), ("negative", -1)):
        claim = "a label is one of the classes"
        bad(f"accumulate_label_{name}", "accumulate", "InputError", claim, parameters=small, q=[[1, 2]], labels=[label])
    bad(
        "accumulate_outside_the_ball",
        "accumulate",
        "OverflowBudgetError",
        "every grid point has norm 2^b at most",
        parameters=small,
        q=[[16, 0], [16, 1]],
        labels=[0, 0],
    )
    bad(
        "accumulate_label_missing",
        "accumulate",
        "MisuseError",
        "every image has a label",
        parameters=small,
        q=[[1, 2], [3, 4]],
        labels=[0],
    )

    tight = [
        segment("r_diagonal", 2, 2, False),
        segment("r_upper", 1, 2, True),
        segment("c", 4, 1, True),
        segment("counts", 2, 8, False),
    ]
    one = {"r_diagonal": [81, 144], "r_upper": [-108], "c": [9, 0, -12, 0], "counts": [1, 0]}
    many = {"r_diagonal": [0, 300 * 256], "r_upper": [0], "c": [0, 0, 300 * 16, 0], "counts": [300, 0]}
    wide = {"r_diagonal": [256, 0], "r_upper": [0], "c": [16, 0, 0, 0], "counts": [1, 0]}

    def refused(name: str, error: str, claim: str, segments: list[Case], arrays: dict[str, list[int]]) -> None:
        bad(f"encode_{name}", "encode", error, claim, segments=segments, arrays=arrays)

    refused("too_many_images", "OverflowBudgetError", "a value beyond its width is an error, not a wrap", tight, many)
    narrow = [s | {"width": 1} if s["name"] == "r_diagonal" else s for s in tight]
    refused("width_too_small", "OverflowBudgetError", "widths below those of the bounds do not go unseen", narrow, wide)
    minus = one | {"r_diagonal": [81, -1]}
    refused("negative_in_unsigned", "OverflowBudgetError", "an unsigned segment has no sign", tight, minus)
    below = one | {"c": [-(2**15) - 1, 0, -12, 0]}
    signed = [s | {"width": 2} if s["name"] == "c" else s for s in tight]
    refused("below_signed", "OverflowBudgetError", "one less than the least number of two bytes", signed, below)
    lacking = {name: values for name, values in one.items() if name != "counts"}
    refused("segment_missing", "MisuseError", "every segment has its array", tight, lacking)
    refused("array_unknown", "MisuseError", "nothing is dropped in silence", tight, one | {"prompts": [0]})
    refused("other_length", "MisuseError", "an array is as long as its segment", tight, one | {"counts": [1]})

    sound = payload(tight, one)
    for name, wrong in (("short", sound[:-2]), ("long", sound + "00"), ("empty", "")):
        bad(
            f"add_payload_{name}",
            "add",
            "ClientFault",
            "a payload of another length is its sender's fault",
            segments=tight,
            payloads=[sound, wrong, sound],
        )

    diagonal = [segment("r_diagonal", 1, 8, False)]
    bad(
        "add_beyond_63_bits",
        "add",
        "OverflowBudgetError",
        "an unsigned sum that no honest clients can have is not read as a negative number",
        segments=diagonal,
        payloads=[payload(diagonal, {"r_diagonal": [2**61 + 2**60]})] * 3,
    )

    def unread(name: str, claim: str, counts: list[int]) -> None:
        agreement = agreed(bits=4, max_images=1)
        total = payload(tight, one | {"counts": counts})
        bad(f"read_{name}", "read", "OverflowBudgetError", claim, parameters=agreement, payload=total)

    unread("more_images_than_cap", "nothing is read of a sum over more images than the widths are for", [1, 1])
    unread("count_beyond_63_bits", "a count that wrapped is not read as a small number", [2**63, 0])
    unread("counts_that_wrap", "counts are added without wrapping", [2**63 - 1, 2**63 - 1])
    bad(
        "moments_of_no_images",
        "moments",
        "InputError",
        "there is nothing to solve without images",
        parameters=small,
        r=[[0, 0], [0, 0]],
        c=[[0, 0], [0, 0]],
        counts=[0, 0],
    )
    return found
