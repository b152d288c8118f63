"""Groups of images: the list that names them, and a cap under which one group never moves what is kept of another."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedopal_secure.core.errors import InputError, MisuseError
from fedopal_secure.data.groups import capped, majority, numbered, parse_listing

# ---- the cap ----

# Few groups and few distinct keys, so that groups are larger than the cap, share keys, and have equal ones.
image_lists = st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=1)), max_size=40)


def kept(images, cap, choose=capped):
    """The images that count, as a multiset of (group, key): what a sum over them depends on."""
    groups = np.array([group for group, _ in images], dtype=np.int64)
    return Counter(images[i] for i in choose(groups, cap, [key for _, key in images]))


def without(images, group):
    return [image for image in images if image[0] != group]


def moved_by_leaving(images, group, cap, choose):
    """How many images the sum gains or loses when one group leaves."""
    before, after = kept(images, cap, choose), kept(without(images, group), cap, choose)
    return (before - after).total() + (after - before).total()


def by_position(groups, cap, keys):
    """The obvious choice that is wrong: the first `cap` of each group in one shuffle of all images."""
    order = np.random.default_rng(0).permutation(len(keys))
    return capped(groups, cap, [int(place).to_bytes(4, "big") for place in np.argsort(order)])


@given(image_lists, st.integers(1, 5), st.data())
def test_one_group_moves_nothing_of_another_and_at_most_the_cap(images, cap, data):
    gone = data.draw(st.integers(0, 4))
    everything = kept(images, cap)
    assert kept(without(images, gone), cap) == Counter(
        {image: times for image, times in everything.items() if image[0] != gone}
    )
    assert moved_by_leaving(images, gone, cap, capped) <= cap
    assert kept(data.draw(st.permutations(images)), cap) == everything


def test_choice_by_position_in_a_shuffle_breaks_the_bound():
    images = [(i % 5, bytes([i])) for i in range(50)]
    assert [moved_by_leaving(images, gone, 3, capped) for gone in range(5)] == [3] * 5
    assert max(moved_by_leaving(images, gone, 3, by_position) for gone in range(5)) > 3


@given(image_lists, st.integers(1, 5))
def test_each_group_keeps_its_smallest_keys_up_to_the_cap(images, cap):
    groups = np.array([group for group, _ in images], dtype=np.int64)
    keys = [key for _, key in images]
    chosen = capped(groups, cap, keys)
    assert chosen.dtype == np.int64 and np.all(np.diff(chosen) > 0)
    for group in set(groups.tolist()):
        own = sorted(key for of, key in images if of == group)
        assert sorted(keys[i] for i in chosen if groups[i] == group) == own[:cap]


def test_cap_below_one_and_missing_keys_are_refused():
    with pytest.raises(InputError, match="cap of 0 images per group"):
        capped(np.zeros(2, dtype=np.int64), 0, [b"a", b"b"])
    with pytest.raises(MisuseError, match="2 keys"):
        capped(np.zeros(3, dtype=np.int64), 1, [b"a", b"b"])


# ---- numbers and classes ----


def test_numbers_are_consecutive_and_do_not_depend_on_order():
    assert numbered(["7", "10", "7", "x"]).tolist() == [1, 0, 1, 2]
    assert numbered([]).tolist() == []


def test_majority_takes_the_smallest_of_equals():
    labels, groups = np.array([5, 2, 2, 3, 1, 9]), np.array([0, 0, 0, 1, 1, 4])
    assert majority(labels, groups).tolist() == [2, 1, 9]


# ---- the list ----


def test_listing_as_a_spreadsheet_writes_it():
    raw = '\ufefffile,group\r\ncat/1.png,p1\r\n"cat/2, big.png"," p1 "\r\n\r\n'.encode()
    assert parse_listing(raw, "groups.csv") == {"cat/1.png": "p1", "cat/2, big.png": "p1"}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "the first line must be file,group"),
        (b"cat/1.png,p1\n", "the first line must be file,group"),
        (b"file;group\ncat/1.png;p1\n", "the first line must be file,group"),
        (b"file,group\na,1\nb\n", "line 3 must have a file and its group"),
        (b"file,group\na,1,2\n", "line 2 must have a file and its group"),
        (b"file,group\na, \n", "line 2 must have a file and its group"),
        (b"file,group\n,1\n", "line 2 must have a file and its group"),
        (b"file,group\na,1\na,1\n", "line 3 lists 'a' a second time"),
        (b'file,group\n"a,1\n', "not a CSV file in UTF-8"),
        (b"file,group\n\xe9,1\n", "not a CSV file in UTF-8"),
    ],
)
def test_malformed_listing_is_one_line(raw, says):
    with pytest.raises(InputError, match=says) as caught:
        parse_listing(raw, "groups.csv in x")
    assert str(caught.value).startswith("groups.csv in x") and "\n" not in str(caught.value)
