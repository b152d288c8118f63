"""spec.md §12 in plain Python: private releases, their text, what they cost, what a client checks, and their noise.

Like reference.py it is slow and shares no code with any implementation. Privacy is computed in fractions; floats are
those of the text, and those of an accountant, which no two implementations need to share.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, get_type_hints

from protocols.statistics.v1.reference import (
    Matrix,
    MisuseError,
    Parameters,
    Row,
    Segment,
    check,
    require,
    segments_of,
    width_of,
)

PI = Decimal("3.14159265358979323846264338327950288419716939937510582")


class PolicyRefusal(Exception):
    """§12.8: a client does not take part; the text is the name of the rule."""


class Noisy(NamedTuple):
    """§12.2: one segment of a release."""

    name: str
    length: int
    squared_sensitivity: int
    sigma: int


class Tuning(NamedTuple):
    """§12.2: the DP-SGD by which prompts were tuned."""

    sample_rate: float
    noise_multiplier: float
    steps: int
    clip: float
    lot: int


class Release(NamedTuple):
    """§12.2: the fields of the text, in order."""

    mechanism: str
    mode: str
    unit: str
    unit_images: int
    relation: str
    epsilon: float
    delta: float
    contributors: int
    count_scale: int
    segments: list[Noisy]
    prompts: Tuning | None


class Session(NamedTuple):
    """§12.8: what the checks need beside the parameters and the release."""

    prompt_mode: str = "none"
    min_survivors: int = 3
    corrupt: int = 0
    min_contributors: int = 0
    masked: bool = True
    group_column: bool = False


def float_text(x: float) -> str:
    """§12.2: the text of a finite binary64 number."""
    sign, digits, exponent = Decimal(repr(x)).as_tuple()  # repr has the fewest digits that read back as x
    if x == 0:
        return "-" * sign + "0.0"
    short = "".join(map(str, digits)).rstrip("0")
    e = len(digits) + int(exponent) - 1
    if -5 <= e < 0:
        body = "0." + "0" * (-e - 1) + short
    elif 0 <= e < 16:
        body = short[: e + 1].ljust(e + 1, "0") + "." + (short[e + 1 :] or "0")
    else:
        body = short[0] + ("." + short[1:] if len(short) > 1 else "") + f"e{e}"
    return "-" * sign + body


def write_release(value: Any) -> str:
    """§12.2: the text of a release, or of a part of one."""
    if hasattr(value, "_fields"):
        return "{" + ",".join(f'"{name}":{write_release(getattr(value, name))}' for name in value._fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write_release, value)) + "]"
    return float_text(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def typed(value: Any, record: Any) -> Any:
    """§12.2: a JSON object as the record that has its fields, in any order, with their types."""
    require(type(value) is dict and set(value) == set(record._fields), PolicyRefusal, "form")
    for name, kind in get_type_hints(record).items():
        if name != "prompts":  # null, or a record of its own
            require(type(value[name]) is (list if name == "segments" else kind), PolicyRefusal, "form")
        require(kind is not float or math.isfinite(value[name]), PolicyRefusal, "form")
    return record(**value)


def read_release(text: str) -> Release:
    """§12.2: a release from its text, which must be the one that is written of it."""
    try:
        release: Release = typed(json.loads(text), Release)
    except (ValueError, RecursionError):
        raise PolicyRefusal("form") from None
    segments = [typed(segment, Noisy) for segment in release.segments]
    prompts = None if release.prompts is None else typed(release.prompts, Tuning)
    release = release._replace(segments=segments, prompts=prompts)
    require(write_release(release) == text, PolicyRefusal, "form")
    return release


def kept(images: Sequence[bytes], labels: Sequence[int], groups: Sequence[int], unit_images: int) -> Row:
    """§12.3: which images count where the unit is a group."""
    keys = [
        hashlib.sha256(image + label.to_bytes(8, "little")).digest()
        for image, label in zip(images, labels, strict=True)
    ]
    found: Row = []
    for group in set(groups):
        found += sorted((i for i, its in enumerate(groups) if its == group), key=lambda i: (keys[i], i))[:unit_images]
    return sorted(found)


def squared_sensitivities(p: Parameters, count_scale: int, unit_images: int) -> dict[str, int]:
    """§12.4: by segment, the most by which one unit moves it, squared."""
    k, d = unit_images**2, p.dimension
    return {
        "r_diagonal": k * 16**p.bits,
        "r_upper": k * 16**p.bits * (d - 1) // (2 * d),
        "c": k * 4**p.bits,
        "counts": k * count_scale**2,
    }


def lengths(p: Parameters) -> dict[str, int]:
    """§6.1: entries of each segment that has noise."""
    d, k = p.dimension, p.classes
    return {"r_diagonal": d, "r_upper": d * (d - 1) // 2, "c": d * k, "counts": k}


def rho_without_gap(release: Release) -> Fraction:
    """§12.5: the cost of the worst unit under Gaussian noise of the contributors' joint variance."""
    noise = {s.name: Fraction(1, 2 * release.contributors * s.sigma**2) for s in release.segments}
    most = {s.name: s.squared_sensitivity for s in release.segments}
    d = next(s.length for s in release.segments if s.name == "r_diagonal")
    quartic = most["r_diagonal"]  # k² Q⁴
    on_one_axis = quartic * noise["r_diagonal"]
    all_equal = Fraction(quartic, d) * noise["r_diagonal"] + Fraction(quartic * (d - 1), 2 * d) * noise["r_upper"]
    return max(on_one_axis, all_equal) + most["c"] * noise["c"] + most["counts"] * noise["counts"]


def gap(release: Release) -> Decimal:
    """§12.5: what is added because a sum of discrete Gaussians is not quite one."""
    total = Decimal(0)
    for s in release.segments:
        for k in range(1, release.contributors):
            total += s.length * 10 * (-2 * PI**2 * s.sigma**2 * k / (k + 1)).exp()
    return total / 4


def epsilon_of(rho: float, delta: float) -> float:
    """§12.6: an epsilon that holds at this delta: at best the conversion at any one order, found by ternary search."""

    def at(t: float) -> float:  # at the order 1 + exp(t)
        return (1 + math.exp(t)) * rho - math.log1p(math.exp(-t)) - math.log(delta * (1 + math.exp(t))) / math.exp(t)

    low, high = -20.0, 20.0
    for _ in range(200):
        third = (high - low) / 3
        low, high = (low, high - third) if at(low + third) < at(high - third) else (low + third, high)
    return max(0.0, at(low))


def holds(releases: Sequence[Release], epsilon: float, delta: float) -> bool:
    """§12.6: whether the sums of these releases together keep to (epsilon, delta); prompts need another accountant."""
    rho = sum(float(rho_without_gap(r)) + float(gap(r)) for r in releases)
    return epsilon_of(rho, delta) <= epsilon * (1 + 1e-9)


def discrete_gaussian(sigma: int, below: Callable[[int], int]) -> int:
    """§12.7: one exact sample of N_Z(0, sigma²): Canonne, Kamath and Steinke 2020, algorithms 1 to 3.

    `below(n)` is uniform among 0 … n−1 and, where the sample is to protect anybody, from a cryptographic generator.
    """

    def exp_minus(x: Fraction) -> bool:
        """True with probability exp(−x)."""
        while x > 1:
            if not exp_minus(Fraction(1)):
                return False
            x -= 1
        k = 1
        while below(x.denominator * k) < x.numerator:  # with probability x/k
            k += 1
        return k % 2 == 1

    t = sigma + 1
    while True:
        u, v, negative = below(t), 0, below(2)
        if not exp_minus(Fraction(u, t)):
            continue
        while exp_minus(Fraction(1)):
            v += 1
        y = u + t * v  # and its sign: a discrete Laplace of scale t
        if not (negative and y == 0) and exp_minus((y - Fraction(sigma**2, t)) ** 2 / (2 * sigma**2)):
            return -y if negative else y


def tail(sigma: int, clients: int, entries: int) -> int:
    """§12.7: what no entry of the noise in a sum exceeds, but with probability 2^-40."""
    a = len(bin((2 * entries * 2**40) ** 256)) - 2
    square = math.ceil(Fraction(clients * sigma**2 * 2 * a * 6931471806, 256 * 10**10))
    return math.isqrt(square - 1) + 1


def private_segments(p: Parameters, release: Release) -> list[Segment]:
    """§12.7: the segments of a session, as wide as the noise of its clients wants."""
    exact = segments_of(p)
    if not p.statistics or release.mode == "central":
        return exact
    images = p.max_images
    bounds = {
        "r_diagonal": images * 4**p.bits,
        "r_upper": images * 4**p.bits // 2,
        "c": images * 2**p.bits,
        "counts": images * release.count_scale,
    }
    entries = sum(s.length for s in release.segments)
    noise = {s.name: tail(s.sigma, p.clients, entries) for s in release.segments}
    return [
        s._replace(width=width_of(bounds[s.name] + noise[s.name], True), signed=True) if s.name in noise else s
        for s in exact
    ]


def add_noise(arrays: Mapping[str, Row], release: Release, noise: Mapping[str, Row]) -> dict[str, Row]:
    """§12.7: exact arrays and one contributor's samples to what leaves it; counts go to their grid first."""
    found = dict(arrays) | {"counts": [count * release.count_scale for count in arrays["counts"]]}
    for s in release.segments:
        require(len(noise[s.name]) == s.length, MisuseError, "one sample for each entry")
        found[s.name] = [value + sample for value, sample in zip(found[s.name], noise[s.name], strict=True)]
    return found


def read_noisy(arrays: Mapping[str, Row], p: Parameters) -> tuple[Matrix, Matrix, Row]:
    """§12.7: R̂, Ĉ and the counts on their grid, with noise: §7.4 without its check, since counts prove nothing here."""
    d, k = p.dimension, p.classes
    r = [[0] * d for _ in range(d)]
    upper = iter(arrays["r_upper"])
    for i in range(d):
        r[i][i] = arrays["r_diagonal"][i]
        for j in range(i + 1, d):
            r[i][j] = r[j][i] = next(upper)
    return r, [arrays["c"][i * k : (i + 1) * k] for i in range(d)], arrays["counts"]


def check_release(text: str, p: Parameters, session: Session) -> Release:
    """§12.8: what a client checks of a release before it sends anything, rule by rule."""

    def rule(name: str, holds: bool) -> None:
        require(holds, PolicyRefusal, name)

    check(p)
    release = read_release(text)
    rule("census", session.min_contributors == 0)
    rule("masks", session.masked or release.mode == "local")
    rule("mechanism", release.mechanism == "discrete-gaussian")
    rule("relation", release.relation == "add-remove")
    rule("mode", release.mode in ("distributed", "central", "local"))
    rule("unit", release.unit in ("image", "group"))
    rule("unit_images", 1 <= release.unit_images <= (1 if release.unit == "image" else 4096))
    rule("epsilon", release.epsilon > 0)
    rule("delta", 0 < release.delta < 1 / p.max_images)
    most = session.min_survivors - session.corrupt if release.mode == "distributed" else 1
    rule("contributors", 1 <= release.contributors <= most)
    rule("count_scale", 1 <= release.count_scale <= 2**32)
    limits = squared_sensitivities(p, release.count_scale, release.unit_images)
    described = [(s.name, s.length, s.squared_sensitivity) for s in release.segments]
    rule("segments", described == [(name, length, limits[name]) for name, length in lengths(p).items()])
    rule("sigma", all(3 <= s.sigma <= 2**40 for s in release.segments))
    tuned = session.prompt_mode in ("local", "two-phase")
    rule("prompts", tuned == (release.prompts is not None))
    t = release.prompts
    if t is not None:
        rule("prompts", release.unit == "image")
        rule("tuning", 2**-20 <= t.sample_rate <= 1 and t.noise_multiplier > 0 and t.clip > 0)
        rule("tuning", 1 <= t.steps <= 2**20 and t.lot >= 1)
    rule("claim", holds([release], release.epsilon, release.delta))
    rule("groups", release.unit == "image" or session.group_column)
    private_segments(p, release)
    return release


def spend(text: str, others: Sequence[str], epsilon: float, delta: float, max_images: int) -> None:
    """§12.9: whether a journal from which the other releases have left (empty: exact sums) may give one more."""
    require(bool(text) or not any(others), PolicyRefusal, "private sums have left")
    require(not text or all(others), PolicyRefusal, "exact sums have left")
    if text:
        releases = [read_release(t) for t in (*others, text)]
        kinds = {(release.unit, release.mode == "central") for release in releases}
        require(len(kinds) == 1, PolicyRefusal, "claims of another kind have left")
        require(epsilon > 0 and 0 < delta < 1 / max_images, PolicyRefusal, "no budget")
        require(holds(releases, epsilon, delta), PolicyRefusal, "budget")
