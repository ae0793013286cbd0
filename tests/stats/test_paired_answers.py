"""The paired difference of pass and fail: reference values, and what it allows where nothing was seen."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from support.tango import tango

from kvtrace.sample_size import pairs_for_margin, requests_without_event
from kvtrace.stats.mcnemar import mcnemar_p
from kvtrace.stats.paired import PairedDifference, paired_difference


def of_counts(lost: int, won: int, pairs: int, **how: float) -> PairedDifference:
    after = np.r_[np.ones(lost), np.zeros(pairs - lost)]
    before = np.r_[np.zeros(lost), np.ones(won), np.zeros(pairs - lost - won)]
    return paired_difference(after, before, np.ones(pairs), **how)


@pytest.mark.parametrize(
    ("counts", "difference", "low", "high"),
    [
        ((9, 1, 400), 0.02, 0.00224, 0.03972),
        ((24, 4, 400), 0.05, 0.02264, 0.07908),
        ((5, 4, 1200), 0.00083, -0.00535, 0.00698),
        ((30, 10, 2000), 0.01, 0.00335, 0.01684),
    ],
)
def test_the_reference_values_hold_up_to_the_error_of_the_draws(
    counts: tuple[int, int, int], difference: float, low: float, high: float
) -> None:
    found = of_counts(*counts)
    assert found.difference == pytest.approx(difference, abs=5e-6)
    assert abs(found.low - low) <= found.low_error
    assert abs(found.high - high) <= found.high_error
    assert 0 < found.high_error < 0.1 * (found.high - found.low)


@pytest.mark.parametrize(
    ("counts", "p"),
    [
        ((9, 1), 0.021484375), ((24, 4), 1.79992e-4), ((5, 4), 1.0), ((30, 10), 0.00222142),
        ((0, 5), 0.0625), ((0, 6), 0.03125), ((1, 7), 0.0703125), ((10, 25), 0.0166738), ((0, 0), 1.0),
    ],
)  # fmt: skip
def test_mcnemars_p_is_the_exact_one(counts: tuple[int, int], p: float) -> None:
    assert mcnemar_p(*counts) == pytest.approx(p, rel=1e-4)
    assert mcnemar_p(*reversed(counts)) == mcnemar_p(*counts)


def test_tangos_interval_as_a_second_opinion_has_its_published_values() -> None:
    assert tango(10, 2, 200) == pytest.approx((0.00722, 0.08106), abs=5e-6)
    assert tango(3, 0, 500) == pytest.approx((-0.00167, 0.01749), abs=5e-6)


@pytest.mark.parametrize("counts", [(10, 2, 200), (3, 0, 500), (9, 1, 400), (30, 10, 2000), (20, 20, 1000)])
def test_the_interval_is_a_little_wider_than_tangos(counts: tuple[int, int, int]) -> None:
    found, (low, high) = of_counts(*counts), tango(*counts)
    assert 0.97 < (found.high - found.low) / (high - low) < 1.3


def test_without_a_differing_pair_the_end_is_exact_and_keeps_what_the_sample_size_promises() -> None:
    assert requests_without_event(0.01) == 368
    found = of_counts(0, 0, 368)
    assert round(found.high, 5) == 0.00997
    assert found.high == pytest.approx(float(special.betaincinv(1, 368, 0.975)))
    assert (found.low, found.high_error) == (-found.high, 0.0)
    assert of_counts(0, 0, 367).high > 0.01
    assert found.high > 0.012 * 300 / 368  # "no difference seen" is not "none"


def test_a_far_tail_takes_more_draws_and_its_error_stays_a_small_part_of_the_interval() -> None:
    far = of_counts(9, 1, 400, confidence=0.9975)
    assert far.high > of_counts(9, 1, 400).high
    assert far.high_error < 0.1 * (far.high - far.low)


def test_many_pairs_are_drawn_in_parts_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_counts(9, 1, 400, limit=0.01)
    monkeypatch.setattr("kvtrace.stats.paired._WEIGHTS_HELD", 5_000)
    parts = of_counts(9, 1, 400, limit=0.01)
    assert (parts.low, parts.high, parts.p_above) == pytest.approx((whole.low, whole.high, whole.p_above))


def test_the_p_of_a_limit_agrees_with_the_interval() -> None:
    found = of_counts(24, 4, 400)
    assert of_counts(24, 4, 400, limit=found.low + 1e-9).p_above == pytest.approx(0.025, abs=0.001)
    assert of_counts(24, 4, 400, limit=0.08).p_above > 0.5  # type: ignore[operator]
    assert of_counts(0, 0, 400, limit=0.01).p_above == 1.0
    assert of_counts(2, 0, 3, limit=0.01).p_above == 1.0
    assert found.p_above is None


TABLE = {
    0.005: (310, 429, 393, 526),
    0.01: (619, 857, 785, 1_051),
    0.02: (1_237, 1_713, 1_570, 2_102),
    0.04: (2_474, 3_426, 3_140, 4_203),
    0.1: (6_183, 8_564, 7_849, 10_508),
    0.2: (12_366, 17_128, 15_698, 21_015),
}


@pytest.mark.parametrize("discordant", TABLE)
def test_the_pairs_for_a_margin_of_one_percent(discordant: float) -> None:
    designs = ((0.9, 0.8), (0.9, 0.9), (0.95, 0.8), (0.95, 0.9))
    found = [pairs_for_margin(discordant, 0.01, confidence=c, power=p) for c, p in designs]
    assert found == list(TABLE[discordant])
