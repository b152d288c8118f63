"""The overflow budget: widths are the least that hold the bound, and the upload has the size that we state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedopal_secure.core.errors import InputError, OverflowBudgetError
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.encoding.layout import (
    c_bound,
    plain_float32_bytes,
    prompt_segment,
    prompts_bound,
    r_diagonal_bound,
    r_upper_bound,
    statistics_segments,
    width_of,
    wire_bytes,
)
from fedopal_secure.statistics.sums import accumulate

# The setting of the FedOPAL paper: CLIP ViT-B/16, ten clients, ten prompts.
DIMENSION, CLASSES, TOKENS, TOKEN_DIMENSION, CLIENTS, BITS = 512, 100, 10, 768, 10, 12
PROMPT_ENTRIES = TOKENS * TOKEN_DIMENSION


@given(st.integers(0, 2**64 - 1), st.booleans())
def test_width_is_the_least_that_holds_the_bound(bound: int, signed: bool) -> None:
    def most(width: int) -> int:
        return 2 ** (8 * width - signed) - 1

    if bound > most(8):
        with pytest.raises(OverflowBudgetError):
            width_of(bound, signed)
        return
    width = width_of(bound, signed)
    assert bound <= most(width)
    assert width == 1 or bound > most(width - 1)


@pytest.mark.parametrize("width", range(1, 9))
def test_width_at_the_edges(width: int) -> None:
    assert width_of(2 ** (8 * width) - 1, signed=False) == width
    assert width_of(2 ** (8 * width - 1) - 1, signed=True) == width
    if width < 8:
        assert width_of(2 ** (8 * width), signed=False) == width + 1
        assert width_of(2 ** (8 * width - 1), signed=True) == width + 1
    else:
        with pytest.raises(OverflowBudgetError, match="8 bytes"):
            width_of(2**64, signed=False)
        with pytest.raises(OverflowBudgetError, match="8 bytes"):
            width_of(2**63, signed=True)


def test_bounds_are_attained_by_the_worst_images() -> None:
    """Equal images at the corner of the ball meet the bounds of R's diagonal and of C; two equal entries, R's rest."""
    n, bits = 50, 12
    corner = np.zeros((n, 2), np.int32)
    corner[:, 0] = 2**bits
    worst = accumulate(corner, np.zeros(n, np.int64), 1, bits)
    assert worst.r[0, 0] == r_diagonal_bound(bits, n)
    assert worst.c[0, 0] == c_bound(bits, n)
    pair = np.full((n, 2), int(2**bits / 2**0.5), np.int32)
    most = accumulate(pair, np.zeros(n, np.int64), 1, bits).r[0, 1]
    assert 0.999 * r_upper_bound(bits, n) < most <= r_upper_bound(bits, n)
    assert prompts_bound(24, 10) == 10 * 2**24


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 9), st.sampled_from([4, 12, 24]), st.booleans())
def test_no_features_pass_the_bounds(seed: int, n: int, dimension: int, bits: int, normalise: bool) -> None:
    rng = np.random.default_rng(seed)
    q = FeatureGrid(dimension, bits=bits, normalise=normalise).quantise(rng.standard_cauchy((n, dimension)))
    s = accumulate(q, rng.integers(0, 3, n), 3, bits)
    off = s.r[~np.eye(dimension, dtype=bool)]
    assert int(s.r.diagonal().min()) >= 0
    assert int(s.r.diagonal().max()) <= r_diagonal_bound(bits, n)
    assert int(np.abs(off).max()) <= r_upper_bound(bits, n)
    assert int(np.abs(s.c).max()) <= c_bound(bits, n)


@pytest.mark.parametrize(
    ("max_images", "widths", "largest_share"), [(50_000, (5, 5, 4, 8), 0.70), (2**20, (6, 6, 5, 8), 0.85)]
)
def test_upload_is_smaller_than_the_papers(max_images: int, widths: tuple[int, ...], largest_share: float) -> None:
    segments = statistics_segments(DIMENSION, CLASSES, BITS, max_images)
    prompts = prompt_segment(TOKENS, TOKEN_DIMENSION, 24, CLIENTS)
    assert tuple(segment.width for segment in segments) == widths
    assert prompts.width == 4
    ours = wire_bytes([*segments, prompts])
    assert ours / plain_float32_bytes(DIMENSION, CLASSES, PROMPT_ENTRIES) <= largest_share


def test_upload_in_numbers() -> None:
    """What the documentation states: 0.695 of plain float32, and 1.174 of a float32 triangle, at 50,000 images."""
    segments = [*statistics_segments(DIMENSION, CLASSES, BITS, 50_000), prompt_segment(10, 768, 24, CLIENTS)]
    ours = 512 * 5 + 130_816 * 5 + 51_200 * 4 + 100 * 8 + 7_680 * 4
    whole = 4 * (512 * 512 + 51_200 + 7_680)
    triangle = 4 * (512 * 513 // 2 + 51_200 + 7_680)
    assert wire_bytes(segments) == ours == 892_960
    assert plain_float32_bytes(512, 100, 7_680) == whole == 1_284_096
    assert plain_float32_bytes(512, 100, 7_680, triangle=True) == triangle == 760_832
    assert round(ours / whole, 3) == 0.695
    assert round(ours / triangle, 3) == 1.174


def test_names_lengths_and_order() -> None:
    segments = statistics_segments(4, 3, 12, 1000)
    assert [(s.name, s.length, s.signed) for s in segments] == [
        ("r_diagonal", 4, False),
        ("r_upper", 6, True),
        ("c", 12, True),
        ("counts", 3, False),
    ]
    prompts = prompt_segment(10, 768, 24, 10)
    assert (prompts.name, prompts.length, prompts.signed) == ("prompts", 7680, True)


@pytest.mark.parametrize(("bits", "max_images"), [(24, 2**15 - 1), (12, 2**39 - 1)])
def test_the_largest_budget(bits: int, max_images: int) -> None:
    """Sums are int64: the diagonal has 63 bits, though its unsigned segment would hold 64."""
    assert statistics_segments(4, 2, bits, max_images)[0].width == 8
    with pytest.raises(OverflowBudgetError, match="fewer images"):
        statistics_segments(4, 2, bits, max_images + 1)


@pytest.mark.parametrize("arguments", [(1, 2, 12, 10), (4, 0, 12, 10), (4, 2, 0, 10), (4, 2, 12, 0)])
def test_empty_statistics_are_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(InputError):
        statistics_segments(*arguments)


@pytest.mark.parametrize("arguments", [(0, 4, 24, 3), (4, 0, 24, 3), (4, 4, 0, 3), (4, 4, 24, 0)])
def test_empty_prompts_are_refused(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(InputError):
        prompt_segment(*arguments)
