"""statistics/v1 in plain Python integers: slow, made to be read beside spec.md, and the source of vectors/*.json.

It shares no code with any implementation. Floats are Python's: IEEE 754 binary64, one rounding per operation; `round`
rounds half to even. Matrices are lists of rows. Every function names the section of spec.md that it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Row = list[int]
Matrix = list[Row]
Floats = Sequence[float]


class InputError(Exception):
    """§8: what a person gave, data or parameters, is wrong."""


class OverflowBudgetError(InputError):
    """§8: a value is outside the bound that the parameters promise, so a sum might wrap."""


class MisuseError(Exception):
    """§8: the caller broke the contract of an operation."""


class ClientFault(Exception):
    """§8: a client sent what no honest client sends."""


class Parameters(NamedTuple):
    """§2: what all parties agree on; in the notation of the page d, k, B, b, normalise, N, K, M, D, B_P, p."""

    statistics: bool = True
    prompts: bool = False
    dimension: int = 2
    classes: int = 2
    bound: float = 1.0
    bits: int = 12
    normalise: bool = True
    max_images: int = 1000
    clients: int = 3
    tokens: int = 1
    prompt_dimension: int = 1
    prompt_bound: float = 4.0
    prompt_bits: int = 24


class Segment(NamedTuple):
    """§6.1: a named run of `length` entries, `width` bytes each."""

    name: str
    length: int
    width: int
    signed: bool


def require(holds: bool, error: type[Exception], reason: str) -> None:
    """§8: raise `error` unless `holds`."""
    if not holds:
        raise error(reason)


def check(p: Parameters) -> None:
    """§2: the limits of the parameters."""
    require(p.clients >= 1, InputError, "clients")
    if p.statistics:
        require(2 <= p.dimension <= 2**16 and p.classes >= 1, InputError, "dimension or classes")
        require(1 <= p.bits <= 24 and 4 ** (p.bits + 1) > p.dimension, InputError, "feature bits")
        require(2.0**-64 <= p.bound <= 2.0**64, InputError, "feature bound")  # NaN fails too
        require(1 <= p.max_images <= 2**40, InputError, "max_images")
        require(p.max_images * 4**p.bits < 2**63, OverflowBudgetError, "max_images needs more than 63 bits")
    if p.prompts:
        require(p.tokens >= 1 and p.prompt_dimension >= 1, InputError, "prompt tokens or dimension")
        require(1 <= p.prompt_bits <= 32 and 2.0**-64 <= p.prompt_bound <= 2.0**64, InputError, "prompt grid")


def radius(p: Parameters) -> float:
    """§3.1: r, the largest norm before rounding, in grid units."""
    return 2.0**p.bits - math.sqrt(float(p.dimension)) / 2.0


def scale(p: Parameters) -> float:
    """§3.1: s, grid units per unit of feature."""
    return radius(p) / p.bound


def add_pairwise(terms: Floats) -> float:
    """§3.2: the recommended order of addition."""
    n = len(terms)
    if n > 128:
        half = n // 2 - n // 2 % 8
        return add_pairwise(terms[:half]) + add_pairwise(terms[half:])
    whole, total = n - n % 8, 0.0
    if whole:
        lane = [0.0] * 8
        for i in range(whole):
            lane[i % 8] += terms[i]
        total = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]))
    for term in terms[whole:]:
        total += term
    return total


def into_unit_ball(h: Floats, p: Parameters) -> list[float]:
    """§3.2: u, the feature in units of B, on the unit sphere or (clipping) inside it."""
    require(len(h) == p.dimension, MisuseError, "a feature of another dimension")
    require(all(map(math.isfinite, h)), InputError, "a feature that is not finite")
    largest = max(abs(value) for value in h)
    g = [value / (largest or 1.0) for value in h]
    norm = math.sqrt(add_pairwise([value * value for value in g]))
    if not p.normalise and norm * largest <= p.bound:
        factor = largest / p.bound
        return [value * factor for value in g]
    return [value / (norm or 1.0) for value in g]


def round_into_ball(x: Floats, bits: int) -> Row:
    """§3.3: half to even; toward zero if that would leave the ball of radius 2^b."""
    q = [round(value) for value in x]
    return q if sum(value * value for value in q) <= 4**bits else [math.trunc(value) for value in x]


def quantise(h: Floats, p: Parameters) -> Row:
    """§3: a feature to its grid point."""
    return round_into_ball([value * radius(p) for value in into_unit_ball(h, p)], p.bits)


def quantise_prompts(prompts: Sequence[Floats], p: Parameters) -> Matrix:
    """§4: prompt tokens to grid points."""
    entries = [value for token in prompts for value in token]
    require(all(map(math.isfinite, entries)), InputError, "a prompt that is not finite")
    require(all(abs(value) <= p.prompt_bound for value in entries), OverflowBudgetError, "a prompt beyond its bound")
    return [[round(value / p.prompt_bound * 2.0**p.prompt_bits) for value in token] for token in prompts]


def accumulate(q: Matrix, labels: Row, p: Parameters) -> tuple[Matrix, Matrix, Row]:
    """§5: R̂ (d x d), Ĉ (d x k) and the class counts."""
    require(len(q) == len(labels), MisuseError, "as many labels as grid points")
    require(all(0 <= label < p.classes for label in labels), InputError, "a label that is no class")
    require(all(sum(v * v for v in row) <= 4**p.bits for row in q), OverflowBudgetError, "outside the ball")
    r, c = [[0] * p.dimension for _ in range(p.dimension)], [[0] * p.classes for _ in range(p.dimension)]
    for row, label in zip(q, labels, strict=True):
        for i, value in enumerate(row):
            c[i][label] += value
            r[i] = [entry + value * other for entry, other in zip(r[i], row, strict=True)]
    return r, c, [labels.count(k) for k in range(p.classes)]


def width_of(bound: int, signed: bool) -> int:
    """§6.3: the least width that holds the bound."""
    fitting = [width for width in range(1, 9) if bound < 2 ** (8 * width - signed)]
    require(bool(fitting), OverflowBudgetError, "more than eight bytes")
    return fitting[0]


def segments_of(p: Parameters) -> list[Segment]:
    """§6.1: the segments of a session."""
    check(p)
    d, diagonal = p.dimension, p.max_images * 4**p.bits
    statistics = [
        ("r_diagonal", d, diagonal, False),
        ("r_upper", d * (d - 1) // 2, diagonal // 2, True),
        ("c", d * p.classes, p.max_images * 2**p.bits, True),
        ("counts", p.classes, 2**64 - 1, False),
    ]
    prompts = [("prompts", p.tokens * p.prompt_dimension, p.clients * 2**p.prompt_bits, True)]
    rows = (statistics if p.statistics else []) + (prompts if p.prompts else [])
    return [Segment(name, length, width_of(bound, signed), signed) for name, length, bound, signed in rows]


def census(labels: Sequence[int], classes: int, clients: int) -> tuple[Segment, Row]:
    """§6.5: the segment of a census and one client's entries."""
    present = [int(c in labels) for c in range(classes)]
    return Segment("presence", classes, width_of(clients, False), False), present


def flatten(r: Matrix, c: Matrix, counts: Row) -> dict[str, Row]:
    """§6.1: the entries of each segment, in order."""
    diagonal, upper = [row[i] for i, row in enumerate(r)], [v for i, row in enumerate(r) for v in row[i + 1 :]]
    return {"r_diagonal": diagonal, "r_upper": upper, "c": [v for row in c for v in row], "counts": counts}


def encode(segments: Sequence[Segment], arrays: Mapping[str, Row]) -> bytes:
    """§7.1: one client's payload."""
    require(sorted(s.name for s in segments) == sorted(arrays), MisuseError, "arrays of other segments")
    payload = b""
    for name, length, width, signed in segments:
        require(len(arrays[name]) == length, MisuseError, f"{name} has another length")
        for value in arrays[name]:
            least, end = (-(2 ** (8 * width - 1)), 2 ** (8 * width - 1)) if signed else (0, 2 ** (8 * width))
            require(least <= value < end, OverflowBudgetError, f"{name} has a value that does not fit")
            payload += (value % 2 ** (8 * width)).to_bytes(width, "little")
    return payload


def residues(segments: Sequence[Segment], payload: bytes) -> dict[str, Row]:
    """§7.1: the entries of a payload, modulo 2^(8w)."""
    require(len(payload) == sum(s.length * s.width for s in segments), ClientFault, "a payload of another length")
    stream, entries = iter(payload), {}
    for name, length, width, _ in segments:
        entries[name] = [sum(next(stream) << (8 * i) for i in range(width)) for _ in range(length)]
    return entries


def add(segments: Sequence[Segment], payloads: Sequence[bytes]) -> bytes:
    """§7.2: the payload of the sum."""
    parts, total = [residues(segments, payload) for payload in payloads], b""
    for name, _, width, _ in segments:
        columns = zip(*(part[name] for part in parts), strict=True)
        total += b"".join((sum(column) % 2 ** (8 * width)).to_bytes(width, "little") for column in columns)
    return total


def decode(segments: Sequence[Segment], payload: bytes) -> dict[str, Row]:
    """§7.3: the integers that the payload of a sum stands for."""
    arrays = residues(segments, payload)
    for name, _, width, signed in segments:
        if signed:
            arrays[name] = [v - 2 ** (8 * width) * (v >= 2 ** (8 * width - 1)) for v in arrays[name]]
        require(max(arrays[name]) < 2**63, OverflowBudgetError, f"{name} sums to more than clients can send")
    return arrays


def read_statistics(arrays: Mapping[str, Row], p: Parameters) -> tuple[Matrix, Matrix, Row]:
    """§7.4: R̂, Ĉ and the counts, unless they are over more images than the cap."""
    require(sum(arrays["counts"]) <= p.max_images, OverflowBudgetError, "more images than the cap")
    d, upper = p.dimension, iter(arrays["r_upper"])
    r = [[arrays["r_diagonal"][i] * (i == j) for j in range(d)] for i in range(d)]
    for i in range(d):
        for j in range(i + 1, d):
            r[i][j] = r[j][i] = next(upper)
    return r, [arrays["c"][i * p.classes : (i + 1) * p.classes] for i in range(d)], arrays["counts"]


def moments(r: Matrix, c: Matrix, counts: Row, p: Parameters) -> tuple[list[list[float]], list[list[float]]]:
    """§7.5: R and C in units of feature."""
    require(sum(counts) >= 1, InputError, "no images in the sum")
    s = scale(p)
    return [[float(v) / (s * s) for v in row] for row in r], [[float(v) / s for v in row] for row in c]


def mean_prompt(total: Matrix, clients: int, p: Parameters) -> list[list[float]]:
    """§7.6: the mean prompt, binary32."""
    require(clients >= 1, MisuseError, "the mean over no clients")
    largest = max(abs(value) for token in total for value in token)
    require(largest <= clients * 2**p.prompt_bits, OverflowBudgetError, "more than so many clients can send")
    divisor = float(clients) * (2.0**p.prompt_bits / p.prompt_bound)
    return [[struct.unpack("<f", struct.pack("<f", float(v) / divisor))[0] for v in token] for token in total]


def upload(features: Sequence[Floats], labels: Row, prompts: Sequence[Floats], p: Parameters) -> bytes:
    """§7.1: all that one client says, from its features, labels and prompts."""
    arrays, segments = {}, segments_of(p)
    if p.statistics:
        require(len(labels) <= p.max_images, OverflowBudgetError, "more images than the cap")
        arrays = flatten(*accumulate([quantise(h, p) for h in features], labels, p))
    if p.prompts:
        arrays["prompts"] = [value for token in quantise_prompts(prompts, p) for value in token]
    return encode(segments, arrays)
