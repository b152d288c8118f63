"""The overflow budget: which segments the vector has, and the fewest bytes that can hold the sum of each.

Every bound is for the sum over all clients, from the public cap on images in all; it is decided before anything is
sent. With q a grid point of norm at most 2**bits: 0 <= q_i^2 <= 2**(2 bits), |q_i q_j| <= (q_i^2 + q_j^2) / 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fedopal_secure.core.errors import InputError, OverflowBudgetError
from fedopal_secure.core.params import Segment

R_DIAGONAL: Final = "r_diagonal"
R_UPPER: Final = "r_upper"
C: Final = "c"
COUNTS: Final = "counts"
PRESENCE: Final = "presence"
PROMPTS: Final = "prompts"

# Whatever the cap: too many images must show as a count, not wrap. Six bytes, where eight would take a second
# ciphertext, hold more images than there are.
COUNT_WIDTH: Final = 8
ENCRYPTED_COUNT_WIDTH: Final = 6


def r_diagonal_bound(bits: int, max_images: int) -> int:
    """Largest diagonal entry of the summed R, grid units squared; the least is 0."""
    return max_images << (2 * bits)


def r_upper_bound(bits: int, max_images: int) -> int:
    """Largest magnitude of an off-diagonal entry of the summed R, grid units squared."""
    return max_images << (2 * bits - 1)


def c_bound(bits: int, max_images: int) -> int:
    """Largest magnitude of an entry of the summed C, grid units."""
    return max_images << bits


def prompts_bound(bits: int, clients: int) -> int:
    """Largest magnitude of an entry of the summed prompts, grid units."""
    return clients << bits


def width_of(bound: int, signed: bool) -> int:
    """Fewest whole bytes w <= 8 with bound <= 2**(8w) - 1, or 2**(8w-1) - 1 if signed.

    Raises OverflowBudgetError if eight bytes do not hold it.
    """
    width = max(1, (bound.bit_length() + int(signed) + 7) // 8)
    if width > 8:
        raise OverflowBudgetError(
            f"sums up to {bound} do not fit into 8 bytes: agree on fewer images, clients or bits of the grid"
        )
    return width


def statistics_lengths(dimension: int, classes: int) -> dict[str, int]:
    """Entries of each segment of R, C and the class counts, in the order of the vector."""
    return {
        R_DIAGONAL: dimension,
        R_UPPER: dimension * (dimension - 1) // 2,
        C: dimension * classes,
        COUNTS: classes,
    }


def statistics_segments(
    dimension: int,
    classes: int,
    bits: int,
    max_images: int,
    noise: Mapping[str, int] | None = None,
    count_scale: int = 1,
    count_width: int = COUNT_WIDTH,
) -> tuple[Segment, ...]:
    """Segments of R, C and the class counts, in the order of the vector; `bits` are those of the feature grid.

    "r_diagonal" (dimension,), unsigned; "r_upper" (dimension * (dimension - 1) / 2,), the strict upper triangle row by
    row, signed; "c" (dimension * classes,), row by row, signed; "counts" (classes,), unsigned and `count_width` bytes
    wide. With `noise`, by segment the largest magnitude that the noise in the sum takes, all are signed and that much
    wider, and an image counts as `count_scale`. Raises OverflowBudgetError if the cap on images is too high for this
    grid, InputError if a number makes no vector.
    """
    if dimension < 2 or classes < 1 or bits < 1 or max_images < 1:
        raise InputError(
            f"dimension {dimension}, {classes} classes, {bits} bits, at most {max_images} images: "
            "it takes at least two dimensions, a class, a bit and an image"
        )
    lengths = statistics_lengths(dimension, classes)
    bounds = {
        R_DIAGONAL: r_diagonal_bound(bits, max_images),
        R_UPPER: r_upper_bound(bits, max_images),
        C: c_bound(bits, max_images),
        COUNTS: max_images * count_scale,
    }
    # Sums are computed as int64, so the diagonal has 63 bits though it travels unsigned.
    width_of(bounds[R_DIAGONAL], True)
    if noise is not None:
        return tuple(
            Segment(name, length, width_of(bounds[name] + noise[name], True), True) for name, length in lengths.items()
        )
    return (
        Segment(R_DIAGONAL, lengths[R_DIAGONAL], width_of(bounds[R_DIAGONAL], False), False),
        Segment(R_UPPER, lengths[R_UPPER], width_of(bounds[R_UPPER], True), True),
        Segment(C, lengths[C], width_of(bounds[C], True), True),
        Segment(COUNTS, lengths[COUNTS], count_width, False),
    )


def prompt_segment(tokens: int, dimension: int, bits: int, clients: int) -> Segment:
    """Segment "prompts" (tokens * dimension,), token by token, signed; `clients` caps the roster."""
    if min(tokens, dimension, bits, clients) < 1:
        raise InputError(
            f"{tokens} prompts of dimension {dimension} at {bits} bits from {clients} clients: each must be at least 1"
        )
    return Segment(PROMPTS, tokens * dimension, width_of(prompts_bound(bits, clients), True), True)


def presence_segment(classes: int, clients: int) -> Segment:
    """Segment "presence" (classes,), unsigned: clients that hold images of each class; `clients` caps the roster."""
    return Segment(PRESENCE, classes, width_of(clients, False), False)


def wire_bytes(segments: Iterable[Segment]) -> int:
    """Bytes that one upload of these segments takes, headers aside."""
    return sum(segment.length * segment.width for segment in segments)


def plain_float32_bytes(dimension: int, classes: int, prompt_entries: int, *, triangle: bool = False) -> int:
    """Bytes of the same upload as plain float32: R whole (FedOPAL eq. 7) or only its upper triangle, C and P."""
    r = dimension * (dimension + 1) // 2 if triangle else dimension * dimension
    return 4 * (r + dimension * classes + prompt_entries)
