"""From noise to epsilon and back: agreement with what can be computed by hand, and refusals."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, ZCDpEvent
from dp_accounting.pld import PLDAccountant

from fedopal_secure.core.errors import InputError, PolicyRefusal
from fedopal_secure.encoding.layout import COUNTS, R_UPPER, C
from fedopal_secure.privacy.accounting import (
    affordable_rho,
    check_claim,
    check_limit,
    claimed,
    epsilon_of,
    events,
    tuning_epsilon,
    tuning_event,
)
from fedopal_secure.privacy.calibration import Vector, calibrate, private_tuning
from fedopal_secure.privacy.release import PrivateTuning, sum_gap, total_sigma, zcdp

VECTOR = Vector(dimension=32, classes=5, bits=12, max_images=4096, honest=8)
TUNING = private_tuning(1.0, 1e-5, sample_rate=0.1, steps=20, clip=1.0, lot=32)


def by_hand(rho: float, delta: float) -> float:
    """zCDP to (epsilon, delta) by the Renyi orders alone: Canonne, Kamath, Steinke 2020, Proposition 12."""
    a = 1 + np.logspace(-3, 5, 20_000)
    return float((rho * a + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)).min())


@pytest.mark.parametrize("rho", [1e-3, 0.03, 1.0, 10.0])
def test_zcdp_is_accounted_as_the_literature_converts_it(rho: float) -> None:
    found = epsilon_of([ZCDpEvent(rho)], 1e-5)
    assert by_hand(rho, 1e-5) - 1e-9 <= found <= by_hand(rho, 1e-5) * 1.02
    assert found < rho + 2 * math.sqrt(rho * math.log(1e5))  # Bun and Steinke 2016, Proposition 1.3


def test_the_integer_path_is_not_claimed_to_be_better_than_the_continuous_gaussian() -> None:
    sigma = 5.0
    continuous = PLDAccountant().compose(GaussianDpEvent(sigma)).get_epsilon(1e-5)
    assert epsilon_of([ZCDpEvent(1 / (2 * sigma**2))], 1e-5) > continuous


@pytest.mark.parametrize("epsilon", [0.05, 0.25, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("mode", ["distributed", "central", "local"])
def test_a_calibrated_release_claims_what_was_wished_and_no_more(epsilon: float, mode: str) -> None:
    release = calibrate(VECTOR, mode, epsilon, 1e-5)  # type: ignore[arg-type]
    assert 0.99 * epsilon < release.epsilon <= epsilon
    assert claimed([release], 1e-5) <= release.epsilon * (1 + 1e-9)
    check_claim(release)
    assert release.contributors == (8 if mode == "distributed" else 1)


def test_the_clients_of_a_distributed_release_add_up_to_the_central_noise() -> None:
    one = calibrate(VECTOR, "central", 1.0, 1e-5)
    many = calibrate(VECTOR, "distributed", 1.0, 1e-5)
    for name in (R_UPPER, C):
        assert total_sigma(many, 8)[name] == pytest.approx(one.sigma(name), rel=1e-3)
        assert many.sigma(name) < one.sigma(name) / 2.8


def test_the_claim_needs_the_noise_of_every_segment() -> None:
    release = calibrate(VECTOR, "distributed", 1.0, 1e-5)
    for thin in (R_UPPER, C, COUNTS):
        segments = tuple(
            msgspec.structs.replace(segment, sigma=segment.sigma // 8) if segment.name == thin else segment
            for segment in release.segments
        )
        with pytest.raises(PolicyRefusal, match="it claims"):
            check_claim(msgspec.structs.replace(release, segments=segments))
    with pytest.raises(PolicyRefusal, match="it claims"):  # more honest clients than there may be
        check_claim(msgspec.structs.replace(release, contributors=7))


def test_the_gap_of_a_sum_from_one_gaussian_vanishes_from_sigma_3_on() -> None:
    assert sum_gap(1, 20) > 1e-4
    assert sum_gap(2, 20) * 4e5 < 1e-9
    assert sum_gap(3, 20) * 4e5 < 1e-30
    assert sum_gap(3, 1) == 0


def test_releases_of_the_same_images_compose() -> None:
    release = calibrate(VECTOR, "central", 1.0, 1e-5)
    twice = claimed([release, release], 1e-5)
    assert 1.3 < twice < 2
    check_limit([release], 1.0, 1e-5)
    check_limit([release, release], twice, 1e-5)
    with pytest.raises(PolicyRefusal, match=r"'epsilon'.*the policy allows 1"):
        check_limit([release, release], 1.0, 1e-5)
    with pytest.raises(PolicyRefusal, match="grants no private release"):
        check_limit([release], 0.0, 0.0)


def test_prompts_by_dp_sgd_and_sums_are_accounted_together() -> None:
    release = calibrate(VECTOR, "distributed", 2.0, 1e-5, prompts=TUNING)
    assert release.prompts is not None
    assert 0.99 * 2 < epsilon_of(events(release), 1e-5) <= 2
    assert tuning_epsilon(release.prompts, 1e-5) <= 1.0  # as it was calibrated
    assert zcdp(release) < zcdp(calibrate(VECTOR, "distributed", 2.0, 1e-5))


def test_dp_sgd_alone_is_told_by_its_privacy_loss_distribution() -> None:
    alone = epsilon_of([tuning_event(TUNING)], 1e-5)
    assert 0.98 < alone <= 1.0  # the noise was chosen under the looser Renyi bound
    assert tuning_epsilon(TUNING, 1e-5) < alone


def test_accounting_for_samples_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    few = private_tuning(2.0, 1e-5, sample_rate=0.2, steps=2, clip=1.0, lot=32)
    calibrate(VECTOR, "distributed", 4.0, 1e-5, prompts=few)
    assert capfd.readouterr() == ("", "")


def test_what_is_left_after_the_prompts_is_less() -> None:
    event = tuning_event(PrivateTuning(0.1, 4.0, 20, 1.0, 32))
    assert affordable_rho(1.0, 1e-5, [event]) < affordable_rho(1.0, 1e-5)
    with pytest.raises(InputError, match="no noise that can be drawn is enough"):
        affordable_rho(0.01, 1e-5, [event])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"epsilon": -1.0}, "epsilon is -1"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"epsilon": math.inf}, "epsilon is inf"),
        ({"unit": "group", "unit_images": 4096, "epsilon": 0.05}, "beyond 2"),
        ({"epsilon": 1e8}, "at least 3"),
        ({"delta": 0.0}, "delta is 0"),
        ({"delta": 1 / 4096}, "below 1/4096"),
        ({"delta": 1.0}, "delta is 1"),
        ({"mode": "shuffled"}, "no privacy mode 'shuffled'"),
        ({"unit_images": 2}, "a unit of 2 images"),
        ({"unit": "group", "unit_images": 0}, "a unit of 0 images"),
        ({"unit": "group", "unit_images": 5, "prompts": TUNING}, "hide single images"),
        ({"r_share": 1.0}, "share of R"),
        ({"vector": Vector(32, 5, 3, 4096, 8), "epsilon": 20.0}, "give more feature bits"),
    ],
)
def test_numbers_that_make_no_release_are_refused(changed: dict[str, object], message: str) -> None:
    arguments = {"vector": VECTOR, "mode": "distributed", "epsilon": 1.0, "delta": 1e-5} | changed
    with pytest.raises(InputError, match=message):
        calibrate(**arguments)  # type: ignore[arg-type]
