"""The Dirichlet partition: an exact cover for any input, skewed or even as alpha says, and never an empty client."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedopal_secure.core.errors import InputError
from fedopal_secure.data.partition import dirichlet_partition


@st.composite
def cases(draw):
    labels = draw(st.lists(st.integers(0, 6), min_size=1, max_size=120))
    clients = draw(st.integers(1, len(labels)))
    alpha = draw(st.one_of(st.floats(1e-300, 1e300), st.sampled_from([0.01, 0.1, 1.0, 10.0, math.inf])))
    return np.array(labels), clients, alpha, draw(st.integers(0, 2**40))


@given(cases())
def test_every_index_once_and_nobody_empty(case):
    labels, clients, alpha, seed = case
    parts = dirichlet_partition(labels, clients, alpha, seed)
    assert len(parts) == clients
    assert all(part.size >= 1 and part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(labels.size))


@given(cases())
def test_same_arguments_same_partition(case):
    first, second = dirichlet_partition(*case), dirichlet_partition(*case)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_seed_matters():
    labels = np.arange(1000) % 10
    first, second = dirichlet_partition(labels, 8, 1.0, 0), dirichlet_partition(labels, 8, 1.0, 1)
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def shares(alpha, clients=10, classes=10, images=10_000):
    """(classes, clients): the part of each class that each client holds, for one fixed seed."""
    labels = np.arange(images) % classes
    parts = dirichlet_partition(labels, clients, alpha, seed=7)
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts], axis=1) / (images / classes)


def test_skew_falls_as_alpha_grows():
    # E[sum of squared shares] = (alpha + 1) / (clients * alpha + 1): 0.92, 0.55, 0.18, 0.109 here.
    measured = [float(np.mean(np.sum(shares(alpha) ** 2, axis=1))) for alpha in (0.01, 0.1, 1.0, 10.0)]
    expected = [(alpha + 1) / (10 * alpha + 1) for alpha in (0.01, 0.1, 1.0, 10.0)]
    assert measured == pytest.approx(expected, rel=0.35)
    assert measured == sorted(measured, reverse=True)


def test_small_alpha_gives_each_class_to_few():
    assert np.median(np.max(shares(0.01), axis=1)) > 0.9


@pytest.mark.parametrize("alpha", [1e6, 1e200, math.inf])
def test_large_alpha_is_near_uniform(alpha):
    assert np.max(np.abs(shares(alpha) - 0.1)) < 0.005


def test_rounding_favours_no_client():
    # 200 classes of 5 images over 10 clients: without a fresh order per class the same five clients would get all.
    labels = np.arange(1000) % 200
    sizes = [part.size for part in dirichlet_partition(labels, 10, math.inf, 3)]
    assert min(sizes) > 60 and max(sizes) < 140


def test_as_many_clients_as_images():
    parts = dirichlet_partition(np.zeros(50, dtype=int), 50, 0.01, 0)
    assert [part.size for part in parts] == [1] * 50


# ---- groups ----


@given(st.data())
def test_groups_stay_whole_and_nobody_is_empty(data):
    images = data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 20)), min_size=1, max_size=80))
    labels, groups = np.array(images).T
    clients = data.draw(st.integers(1, len(set(groups))))
    alpha = data.draw(st.sampled_from([0.01, 0.5, 10.0, math.inf]))
    seed = data.draw(st.integers(0, 2**40))
    parts = dirichlet_partition(labels, clients, alpha, seed, groups)
    assert len(parts) == clients
    assert all(part.size >= 1 and part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(labels.size))
    held = [set(groups[part]) for part in parts]
    assert sum(map(len, held)) == len(set(groups))


def test_without_groups_they_are_parted():
    labels, groups = np.arange(200) % 4, np.arange(200) // 10
    held = [set(groups[part]) for part in dirichlet_partition(labels, 5, 1.0, 0)]
    assert sum(map(len, held)) > len(set(groups))


@given(cases())
def test_groups_of_one_image_change_nothing(case):
    labels, clients, alpha, seed = case
    plain = dirichlet_partition(labels, clients, alpha, seed)
    grouped = dirichlet_partition(labels, clients, alpha, seed, np.arange(labels.size))
    assert all(np.array_equal(a, b) for a, b in zip(plain, grouped, strict=True))


def test_group_goes_where_its_majority_class_goes():
    # Groups of one image of another class and two of their own; ten groups of each class.
    groups = np.repeat(np.arange(40), 3)
    of_group = np.arange(40) % 4
    labels = np.stack([(of_group + 1) % 4, of_group, of_group], axis=1).ravel()
    parts = dirichlet_partition(labels, 6, 0.3, 5, groups)
    by_group = dirichlet_partition(of_group, 6, 0.3, 5)
    assert [sorted(set(groups[part])) for part in parts] == [part.tolist() for part in by_group]


@pytest.mark.parametrize(
    ("groups", "clients", "says"),
    [
        ([7, 7, 9], 3, "3 clients but only 2 groups"),
        ([7, 7], 1, "2 groups for 3 images"),
        ([0.5, 1.0, 2.0], 1, "groups must be a vector of integers"),
        (["a", "b", "c"], 1, "groups must be a vector of integers"),
    ],
)
def test_bad_groups(groups, clients, says):
    with pytest.raises(InputError, match=says):
        dirichlet_partition([0, 1, 1], clients, 1.0, 0, groups)


@pytest.mark.parametrize(
    ("labels", "clients", "alpha", "seed", "says"),
    [
        ([0, 1], 2, 0.0, 0, "alpha is 0.0"),
        ([0, 1], 2, -1.0, 0, "alpha is -1.0"),
        ([0, 1], 2, math.nan, 0, "alpha is nan"),
        ([0, 1], 2, -math.inf, 0, "alpha is -inf"),
        ([0, 1], 3, 1.0, 0, "3 clients but only 2 images"),
        ([], 1, 1.0, 0, "1 clients but only 0 images"),
        ([0, 1], 0, 1.0, 0, "0 clients"),
        ([0, 1], 2, 1.0, -1, "seed is -1"),
        ([0.5, 1.0], 2, 1.0, 0, "vector of integers"),
        ([[0], [1]], 2, 1.0, 0, "vector of integers"),
    ],
)
def test_bad_input_is_one_line(labels, clients, alpha, seed, says):
    with pytest.raises(InputError, match=says) as caught:
        dirichlet_partition(labels, clients, alpha, seed)
    assert "\n" not in str(caught.value)
