"""Moments are those of the features that prediction sees, computed here from the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.encoding.grid import FeatureGrid
from fedopal_secure.solver.moments import Moments
from fedopal_secure.statistics.sums import SufficientStatistics, accumulate


def rows_and_moments(grid: FeatureGrid, n: int = 200, classes: int = 4) -> tuple[np.ndarray, np.ndarray, Moments]:
    rng = np.random.default_rng(8)
    features, labels = rng.standard_normal((n, grid.dimension)) + 1, rng.integers(0, classes - 1, n)
    statistics = accumulate(grid.quantise(features), labels, classes, grid.bits)  # the last class has no images
    return grid.normalised(features), labels, Moments.from_statistics(statistics, grid)


@pytest.mark.parametrize("grid", [FeatureGrid(6, bits=24), FeatureGrid(6, 3.0, 24), FeatureGrid(6, 2.0, 24, False)])
def test_moments_are_those_of_the_rows(grid: FeatureGrid) -> None:
    h, labels, moments = rows_and_moments(grid)
    y = np.eye(4)[labels]
    centred = h - h.mean(axis=0)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(moments.r, h.T @ h, **close)
    np.testing.assert_allclose(moments.c, h.T @ y, **close)
    np.testing.assert_allclose(moments.mean, h.mean(axis=0), **close)
    np.testing.assert_allclose(moments.centred_r(), centred.T @ centred, **close)
    np.testing.assert_allclose(moments.centred_c(), centred.T @ (y - y.mean(axis=0)), **close)
    np.testing.assert_allclose(moments.class_shares, y.mean(axis=0))
    assert moments.images == 200
    for k in range(3):
        np.testing.assert_allclose(moments.class_means[:, k], h[labels == k].mean(axis=0), **close)
    assert not moments.class_means[:, 3].any()


def test_the_scale_of_the_grid_is_that_of_prediction() -> None:
    """Divided by 2**bits / bound instead, R would be a sum of other features than `normalised` returns (the control).

    On a coarse grid in a high dimension they are a third shorter.
    """
    grid = FeatureGrid(1024, bits=6)
    h, _, moments = rows_and_moments(grid)
    q = moments.c.sum(axis=1) * grid.scale
    direction = h.sum(axis=0)
    assert direction @ moments.mean * 200 / (direction @ direction) == pytest.approx(1, abs=0.01)
    assert direction @ (q / 2**grid.bits) / (direction @ direction) == pytest.approx(0.75, abs=0.01)


def test_rounding_adds_a_twelfth_of_a_unit_to_the_diagonal() -> None:
    """The statement of the docstring, at 7 bits, where it can be seen; off the diagonal nothing is added."""
    grid = FeatureGrid(256, bits=7)
    h, _, moments = rows_and_moments(grid, n=4000)
    excess = (moments.r - h.T @ h) * 12 * grid.scale**2 / 4000
    assert excess.diagonal().mean() == pytest.approx(1, abs=0.1)
    assert excess[~np.eye(256, dtype=bool)].mean() == pytest.approx(0, abs=0.1)


def test_no_images_is_an_input_error() -> None:
    with pytest.raises(InputError, match="no images"):
        Moments.from_statistics(SufficientStatistics.zeros(6, 3), FeatureGrid(6))


def test_another_dimension_is_refused() -> None:
    with pytest.raises(MisuseError, match="dimension"):
        Moments.from_statistics(SufficientStatistics.zeros(6, 3), FeatureGrid(7))
