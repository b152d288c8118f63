"""Shamir's sharing: any t of n holders rebuild a secret, and t - 1 know nothing at all."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedopal_secure.core import shamir
from fedopal_secure.core.errors import MisuseError
from fedopal_secure.core.shamir import PRIME, Recovery, split
from tests.core.harness import entropy

SECRETS = st.binary(min_size=32, max_size=32) | st.sampled_from([bytes(32), b"\xff" * 32, bytes(31) + b"\1"])


def test_the_field():
    """2**256 + 297 is prime, the least one above 2**256, so a share takes 33 bytes."""
    assert PRIME == 2**256 + 297
    assert _fermat(PRIME)
    assert not any(_fermat(2**256 + k) for k in range(1, 297, 2))
    assert (PRIME - 1).bit_length() == 257


def _fermat(number: int) -> bool:
    return all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7))


@st.composite
def sharings(draw: st.DrawFn) -> tuple[bytes, int, list[int], list[int]]:
    n = draw(st.integers(1, 12))
    indices = draw(st.lists(st.integers(1, 300), min_size=n, max_size=n, unique=True))
    t = draw(st.integers(1, n))
    return draw(SECRETS), t, indices, draw(st.permutations(range(n)))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(sharings(), st.binary(max_size=8))
def test_any_t_holders_rebuild_the_secret(case, start):
    secret, t, indices, order = case
    shares = split(secret, t, indices, entropy(start))
    assert all(len(share) == 33 for share in shares)
    assert all(int.from_bytes(share, "big") < PRIME for share in shares)
    for count in range(t, len(indices) + 1):
        chosen = order[:count]
        recovery = Recovery([indices[i] for i in chosen], t)
        assert recovery.combine([shares[i] for i in chosen]) == secret


@settings(max_examples=60, deadline=None, derandomize=True)
@given(sharings(), st.data())
def test_one_wrong_share_is_noticed_if_there_is_one_to_spare(case, data):
    """With t + 1 or more, no single change passes; with exactly t it gives another secret or none."""
    secret, t, indices, _ = case
    shares = split(secret, t, indices, entropy(b""))
    place = data.draw(st.integers(0, len(indices) - 1))
    wrong = data.draw(st.integers(0, PRIME - 1).map(lambda value: value.to_bytes(33, "big")))
    if wrong == shares[place]:
        return
    shares[place] = wrong
    rebuilt = Recovery(indices, t).combine(shares)
    assert rebuilt is None if len(indices) > t else rebuilt != secret


@pytest.fixture
def small_field(monkeypatch: pytest.MonkeyPatch) -> int:
    """The same code over seven elements."""
    monkeypatch.setattr(shamir, "PRIME", 7)
    return 7


def all_sharings(secret: int, t: int, n: int, p: int) -> Iterable[tuple[int, ...]]:
    """The shares of every choice of coefficients, each as probable as the other."""
    for coefficients in itertools.product(range(p), repeat=t - 1):
        drawn = iter(coefficients)
        # The code takes the upper 257 of 264 bits.
        shares = split(
            secret.to_bytes(32, "big"), t, range(1, n + 1), lambda count, d=drawn: (next(d) << 7).to_bytes(count, "big")
        )
        yield tuple(int.from_bytes(share, "big") for share in shares)


@pytest.mark.parametrize("t", [2, 3, 4])
def test_t_minus_1_holders_know_nothing(t, small_field):
    """Exactly, by enumeration: whoever the t - 1 are, what they see is equally distributed for every secret."""
    n = 5
    for group in itertools.combinations(range(n), t - 1):
        seen = [
            Counter(tuple(shares[i] for i in group) for shares in all_sharings(secret, t, n, small_field))
            for secret in range(small_field)
        ]
        assert all(counts == seen[0] for counts in seen)
        assert set(seen[0].values()) == {1}
        assert len(seen[0]) == small_field ** (t - 1)


@pytest.mark.parametrize("t", [2, 3])
def test_t_holders_know_everything(t, small_field):
    """The control of the enumeration: with one more holder no two secrets have a sight in common."""
    for group in itertools.combinations(range(5), t):
        sights = [
            {tuple(shares[i] for i in group) for shares in all_sharings(secret, t, 5, small_field)}
            for secret in range(small_field)
        ]
        assert not any(one & other for one, other in itertools.combinations(sights, 2))


def test_a_leading_coefficient_that_is_never_zero_would_tell(small_field):
    """Another control: polynomials of exact degree t - 1, a common mistake, rule out secrets for t - 1 holders."""
    exact = [
        Counter(shares[0] for shares in all_sharings(secret, 2, 3, small_field) if shares[0] != shares[1])
        for secret in range(small_field)
    ]
    assert exact[0] != exact[1]


def test_random_elements_are_uniform_by_rejection():
    def drawing(*values: int) -> int:
        stream = iter(values)
        return shamir._random_element(lambda count: (next(stream) << 7).to_bytes(count, "big"))

    assert drawing(PRIME - 1) == PRIME - 1
    assert drawing(PRIME, 2**257 - 1, 5) == 5
    assert drawing(0) == 0
    # The seven low bits are dropped, not used.
    assert shamir._random_element(lambda count: bytes(count - 1) + b"\x7f") == 0


def test_each_sharing_takes_fresh_coefficients():
    source = entropy(b"")
    one, other = (split(bytes(32), 3, range(1, 6), source) for _ in range(2))
    assert not set(one) & set(other)


def test_a_rebuilt_value_that_is_no_32_byte_secret_is_none():
    for value, secret in ((2**256 - 1, b"\xff" * 32), (2**256, None), (PRIME - 1, None)):
        constant = value.to_bytes(33, "big")
        assert Recovery([1, 2, 3], 1).combine([constant] * 3) == secret


def test_shares_in_a_second_form_are_refused():
    shares = split(bytes(32), 2, [1, 2, 3], entropy(b""))
    for place in range(3):
        spoilt = list(shares)
        spoilt[place] = (int.from_bytes(shares[place], "big") + PRIME).to_bytes(33, "big")
        assert Recovery([1, 2, 3], 2).combine(spoilt) is None


@pytest.mark.parametrize("indices", [(2, 7, 9), (9, 2, 7), (2, 7, 9, 200), (300, 1, 5, 2, 4)])
def test_lagrange_evaluates_polynomials(indices):
    values = [((3 * x**2 + 5 * x + 11) % PRIME).to_bytes(33, "big") for x in indices]
    assert Recovery(indices, 3).combine(values) == (11).to_bytes(32, "big")
    # A polynomial of degree 2 is none of degree 1, wherever it is seen.
    assert Recovery(indices, 2).combine(values) is None


@pytest.mark.parametrize("t", [1, 2, 3, 4])
def test_recovery_takes_exactly_the_polynomials(t, small_field):
    """By enumeration: of all values that four holders may show, those on a polynomial of degree t - 1 and no others."""
    indices = (4, 1, 6, 3)
    lawful = {
        tuple(sum(c * x**k for k, c in enumerate(coefficients)) % small_field for x in indices): coefficients[0]
        for coefficients in itertools.product(range(small_field), repeat=t)
    }
    assert len(lawful) == small_field**t
    recovery = Recovery(indices, t)
    for values in itertools.product(range(small_field), repeat=len(indices)):
        rebuilt = recovery.combine([value.to_bytes(33, "big") for value in values])
        assert (None if rebuilt is None else int.from_bytes(rebuilt, "big")) == lawful.get(values)


@pytest.mark.parametrize(
    ("secret", "t", "indices"),
    [
        (bytes(31), 1, [1]),
        (bytes(33), 1, [1]),
        (b"", 1, [1]),
        (bytes(32), 0, [1, 2]),
        (bytes(32), -1, [1, 2]),
        (bytes(32), 3, [1, 2]),
        (bytes(32), 1, [1, 1]),
        (bytes(32), 1, [0, 1]),
        (bytes(32), 1, [-1, 1]),
        (bytes(32), 1, []),
    ],
)
def test_sharing_that_cannot_work(secret, t, indices):
    with pytest.raises(MisuseError):
        split(secret, t, indices, entropy(b""))


@pytest.mark.parametrize(("indices", "t"), [([1, 2], 3), ([1, 1, 2], 2), ([], 1)])
def test_recovery_that_cannot_work(indices, t):
    with pytest.raises(MisuseError):
        Recovery(indices, t)
