"""The feature grid keeps every norm below 2**bits, whatever the features; the prompt grid keeps to its bound."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedopal_secure.core.errors import InputError, MisuseError, OverflowBudgetError
from fedopal_secure.encoding.grid import FeatureGrid, PromptGrid, _round_into_ball

FINITE = st.floats(allow_nan=False, allow_infinity=False)
HARD = st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, 2.2e-308, 1e-200, 1e-45, 0.5, -0.5, 1.0, -1.0, 1e150, 1.7976931348623157e308]
)


def squared_norm(row: np.ndarray) -> int:
    return sum(value * value for value in row.tolist())  # Python integers: nothing can wrap or round


@st.composite
def grids(draw: st.DrawFn) -> FeatureGrid:
    dimension = draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 255, 256, 257, 768, 1024, 2048])))
    bits = draw(st.integers(6 if dimension > 40 else 3, 24))
    bound = draw(st.one_of(st.just(1.0), st.floats(1e-6, 1e6)))
    return FeatureGrid(dimension, bound, bits, normalise=draw(st.booleans()))


@st.composite
def grids_and_features(draw: st.DrawFn) -> tuple[FeatureGrid, np.ndarray]:
    grid = draw(grids())
    kind = draw(st.sampled_from(["any", "hard", "gaussian", "constant", "half-way"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (3, grid.dimension)
    if kind == "any":
        features = draw(hnp.arrays(np.float64, shape, elements=FINITE, fill=FINITE))
    elif kind == "hard":
        features = draw(hnp.arrays(np.float64, shape, elements=HARD, fill=HARD))
    elif kind == "gaussian":
        features = rng.standard_normal(shape) * 10.0 ** rng.integers(-300, 300, shape)
    elif kind == "constant":
        features = np.full(shape, draw(FINITE)) * rng.choice([-1.0, 1.0], shape)
    else:  # every entry lands on a half once it is scaled, or one float beside it
        features = (rng.integers(-(2**grid.bits), 2**grid.bits, shape) + 0.5) / grid.scale
        features = np.nextafter(features, features * rng.choice([0.0, 1.0, 2.0], shape))
    return grid, features


@settings(max_examples=300, deadline=None)
@given(grids_and_features())
def test_no_finite_feature_leaves_the_ball(case: tuple[FeatureGrid, np.ndarray]) -> None:
    grid, features = case
    q = grid.quantise(features)
    assert q.dtype == np.int32
    assert all(squared_norm(row) <= 4**grid.bits for row in q)
    assert not q[~features.any(axis=1)].any()


@pytest.mark.parametrize(("bits", "k"), [(1, 0), (5, 0), (5, 3), (12, 1), (12, 5), (20, 3), (24, 0), (24, 5)])
def test_the_bound_is_attained(bits: int, k: int) -> None:
    """In dimension 4**k a constant row lands on halves, rounds up, and meets 2**bits exactly: the margin is tight."""
    grid = FeatureGrid(4**k, bits=bits)
    q = grid.quantise(np.ones((1, 4**k)))
    assert squared_norm(q[0]) == 4**bits


def test_without_the_margin_norms_exceed_the_bound() -> None:
    """Control: scaled by 2**bits alone, ordinary rows leave the ball, so the property above can fail."""
    features = np.random.default_rng(1).standard_normal((200, 512))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    naive = np.rint(unit * 2**12).astype(np.int64)
    assert (np.square(naive).sum(axis=1) > 4**12).mean() > 0.2
    q = FeatureGrid(512).quantise(features).astype(np.int64)
    assert (np.square(q).sum(axis=1) <= 4**12).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30), st.integers(2, 20), st.integers(0, 2**32))
def test_rows_that_round_off_pushes_over_are_truncated(dimension: int, bits: int, seed: int) -> None:
    """Rows of norm just below 2**bits, without the margin: about half round outward, and must come back inside."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((20, dimension))
    rows *= (2**bits * (1 - 1e-12)) / np.linalg.norm(rows, axis=1, keepdims=True)
    q = _round_into_ball(rows, bits)
    plain = np.rint(rows)
    for row, mine, rounded in zip(rows, q, plain, strict=True):
        fits = squared_norm(rounded.astype(np.int64)) <= 4**bits
        assert np.array_equal(mine, rounded if fits else np.trunc(row))
        assert squared_norm(mine) <= 4**bits


def test_truncation_is_needed_in_that_test() -> None:
    q = _round_into_ball(np.array([[2.6, 3.04]]), 2)  # norm 3.9998, rounds to (3, 3) of norm 4.24
    assert q.tolist() == [[2, 3]]


@settings(max_examples=100, deadline=None)
@given(grids(), st.integers(0, 2**32))
def test_rounding_is_half_even_of_the_scaled_feature(grid: FeatureGrid, seed: int) -> None:
    features = np.random.default_rng(seed).standard_normal((4, grid.dimension)) * grid.bound
    scaled = grid.normalised(features) * grid.scale
    assert np.abs(grid.quantise(features) - scaled).max() <= 0.5 + 1e-6
    assert np.linalg.norm(grid.normalised(features), axis=1).max() <= grid.bound * (1 + 1e-12)


def test_half_way_values_go_to_the_even_neighbour() -> None:
    grid = FeatureGrid(4, bound=63.0, bits=6, normalise=False)
    assert grid.scale == 1.0  # in dimension 4 the margin is 1, so that halves can be written exactly
    assert grid.quantise(np.array([[0.5, 1.5, 2.5, -3.5]])).tolist() == [[0, 2, 2, -4]]


def test_normalised_features_have_the_bound_as_norm() -> None:
    features = np.random.default_rng(0).standard_normal((5, 7))
    features[2] *= 1e-300
    features[3] = 0
    norms = np.linalg.norm(FeatureGrid(7, bound=3.0).normalised(features), axis=1)
    assert norms == pytest.approx([3, 3, 3, 0, 3])


def test_clipping_leaves_short_features_and_pulls_long_ones_back() -> None:
    grid = FeatureGrid(2, bound=2.0, normalise=False)
    features = np.array([[0.3, -0.4], [3.0, 4.0], [0.0, 2.0], [1e308, 1e308], [0.0, 0.0]])
    root = math.sqrt(2)
    expected = np.array([[0.3, -0.4], [1.2, 1.6], [0.0, 2.0], [root, root], [0.0, 0.0]])
    assert grid.normalised(features) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.booleans(), st.integers(0, 2**32))
def test_each_row_depends_on_that_row_alone(dimension: int, rows: int, normalise: bool, seed: int) -> None:
    """Bit for bit, in any memory order: so a client's own pass and the pooled pass give the same integers."""
    grid = FeatureGrid(dimension, bits=24, normalise=normalise)
    features = np.random.default_rng(seed).standard_normal((rows, dimension)).astype(np.float32)
    together = grid.normalised(features)
    assert np.array_equal(together, np.concatenate([grid.normalised(features[i : i + 1]) for i in range(rows)]))
    assert np.array_equal(together, grid.normalised(np.asfortranarray(features)))
    assert np.array_equal(together[::-1], grid.normalised(features[::-1]))


def test_input_is_not_changed() -> None:
    features = np.full((2, 3), 5.0)
    FeatureGrid(3).quantise(features)
    assert (features == 5.0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_features_name_their_row(bad: float) -> None:
    features = np.ones((9, 4))
    features[6, 1] = bad
    with pytest.raises(InputError, match="row 6"):
        FeatureGrid(4).quantise(features)


@pytest.mark.parametrize("shape", [(4,), (2, 5), (2, 4, 1)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MisuseError, match=r"\(n, 4\)"):
        FeatureGrid(4).quantise(np.ones(shape))


def test_no_rows_give_no_rows() -> None:
    assert FeatureGrid(4).quantise(np.empty((0, 4))).shape == (0, 4)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dimension": 0}, "dimension"),
        ({"dimension": 4, "bits": 0}, "bits"),
        ({"dimension": 4, "bits": 25}, "bits"),
        ({"dimension": 4, "bound": 0.0}, "bound"),
        ({"dimension": 4, "bound": -1.0}, "bound"),
        ({"dimension": 4, "bound": math.nan}, "bound"),
        ({"dimension": 4, "bound": math.inf}, "bound"),
        ({"dimension": 2048, "bits": 4}, "give 5"),
        ({"dimension": 4, "bits": 0}, "give 1 to 24"),
        ({"dimension": 16, "bits": 1}, "give 2"),
    ],
)
def test_impossible_grids_are_refused(kwargs: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FeatureGrid(**kwargs)  # type: ignore[arg-type]


def test_the_smallest_grid_that_is_advised_exists() -> None:
    assert FeatureGrid(2048, bits=5).scale > 0
    assert FeatureGrid(16, bits=2).scale > 0


# prompts


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(np.float32, (3, 4), elements=st.floats(-4, 4, width=32)),
    st.integers(1, 32),
)
def test_prompts_stay_on_their_grid(prompts: np.ndarray, bits: int) -> None:
    grid = PromptGrid(4.0, bits)
    q = grid.quantise(prompts)
    assert q.dtype == np.int64
    assert all(abs(value) <= 2**bits for value in q.ravel().tolist())
    assert np.abs(q / grid.scale - prompts).max() <= 0.5 / grid.scale


def test_default_grid_returns_a_prompt_to_float32_precision() -> None:
    prompts = np.random.default_rng(0).standard_normal((10, 768)).clip(-4, 4).astype(np.float32)
    grid = PromptGrid()
    assert np.abs(grid.mean(grid.quantise(prompts), 1) - prompts).max() <= 2.0**-23


def test_mean_is_that_of_the_grid_points() -> None:
    rng = np.random.default_rng(3)
    grid = PromptGrid()
    each = [grid.quantise(rng.uniform(-4, 4, (5, 6))) for _ in range(7)]
    mean = grid.mean(np.sum(each, axis=0), 7)
    exact = [[float(Fraction(sum(int(q[i, j]) for q in each) * 4, 7 * 2**24)) for j in range(6)] for i in range(5)]
    assert mean.dtype == np.float32
    assert np.array_equal(mean, np.array(exact, np.float32))


@pytest.mark.parametrize("entry", [4.0000001, -5.0, 1e300])
def test_prompts_beyond_the_bound_are_refused(entry: float) -> None:
    with pytest.raises(OverflowBudgetError, match="bound"):
        PromptGrid().quantise(np.array([[0.0, entry]]))


def test_prompts_at_the_bound_are_kept() -> None:
    assert PromptGrid().quantise(np.array([[4.0, -4.0]])).tolist() == [[2**24, -(2**24)]]


def test_non_finite_prompts_name_their_token() -> None:
    with pytest.raises(InputError, match="token 1"):
        PromptGrid().quantise(np.array([[0.0, 1.0], [np.nan, 1.0]]))


def test_a_sum_that_clients_cannot_have_made_is_refused() -> None:
    grid = PromptGrid()
    assert grid.mean(np.array([[3 * 2**24]]), 3).tolist() == [[4.0]]
    with pytest.raises(OverflowBudgetError, match="3 clients"):
        grid.mean(np.array([[3 * 2**24 + 1]]), 3)
    with pytest.raises(MisuseError):
        grid.mean(np.array([[0]]), 0)


@pytest.mark.parametrize("kwargs", [{"bits": 0}, {"bits": 33}, {"bound": 0.0}, {"bound": math.nan}])
def test_impossible_prompt_grids_are_refused(kwargs: dict[str, float]) -> None:
    with pytest.raises(InputError):
        PromptGrid(**kwargs)  # type: ignore[arg-type]


def test_prompts_of_wrong_shape_are_refused() -> None:
    with pytest.raises(MisuseError):
        PromptGrid().quantise(np.zeros(4))
