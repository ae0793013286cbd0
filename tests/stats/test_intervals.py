from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from support.maxima_oracle import expected_maximum

from kvtrace.stats.discoveries import HYPOTHESIS, PROCEDURE, q_values
from kvtrace.stats.fractions import exceedance_p_values, fraction_intervals, request_sums
from kvtrace.stats.jackknife import jackknife_ratios, ratio_p_values
from kvtrace.stats.paired import paired_difference


def test_all_or_nothing_requests_give_clopper_and_pearsons_interval_of_requests() -> None:
    # 3 of 20 requests; Clopper–Pearson of 3/20 is 0.0321 to 0.3789 in every textbook table.
    found = fraction_intervals(request_sums([64] * 3 + [0] * 17, [64] * 20))
    assert found.fraction == 0.15
    assert found.low == pytest.approx(0.0321, abs=5e-5)
    assert found.high == pytest.approx(0.3789, abs=5e-5)


def test_no_event_bounds_the_fraction_by_the_number_of_requests_not_of_vectors() -> None:
    few = fraction_intervals(request_sums([0] * 100, [10] * 100))
    many = fraction_intervals(request_sums([0] * 100, [10_000] * 100))
    assert few.low == 0.0
    assert few.high == pytest.approx(1 - 0.025 ** (1 / 100))
    assert many.high == few.high


def test_an_assumed_worst_request_narrows_the_bound_until_a_request_contradicts_it() -> None:
    silent = request_sums([0] * 100, [10] * 100)
    assumed = fraction_intervals(silent, worst_request=0.1)
    assert float(assumed.high) == pytest.approx(float(fraction_intervals(silent).high) / 10, rel=0.15)
    contradicted = request_sums([5] + [0] * 99, [10] * 100)
    assert fraction_intervals(contradicted, worst_request=0.1).high == fraction_intervals(contradicted).high


@pytest.mark.parametrize("num_requests", [0, 1, 2])
def test_too_few_requests_give_no_number(num_requests: int) -> None:
    found = fraction_intervals(request_sums([1] * num_requests, [10] * num_requests))
    assert found.too_few_requests
    assert (found.low, found.high) == (0.0, 1.0)
    assert exceedance_p_values(request_sums([1] * num_requests, [10] * num_requests), 0.001) == 1.0


def test_three_or_four_requests_can_show_that_a_limit_is_exceeded_but_not_that_it_is_kept() -> None:
    found = fraction_intervals(request_sums([10] * 4, [10] * 4))
    assert found.too_few_requests
    assert found.low == pytest.approx(0.025 ** (1 / 4))
    assert fraction_intervals(request_sums([0] * 4, [10] * 4)).high == 1.0


def test_every_vector_out_of_range_reaches_one() -> None:
    found = fraction_intervals(request_sums([8] * 20, [8] * 20))
    assert found.high == 1.0
    assert found.low == pytest.approx(0.025 ** (1 / 20), rel=1e-6)


def test_requests_without_a_vector_do_not_count() -> None:
    with_empty = fraction_intervals(request_sums([1, 0, 2, 0, 0, 1, 0, 0], [9, 8, 7, 6, 5, 9, 0, 0]))
    without = fraction_intervals(request_sums([1, 0, 2, 0, 0, 1], [9, 8, 7, 6, 5, 9]))
    assert with_empty.num_requests == 6
    assert (with_empty.low, with_empty.high) == (without.low, without.high)


def test_the_beta_law_is_close_to_the_dirichlet_law_that_it_stands_for() -> None:
    rng = np.random.default_rng(2)
    n = rng.integers(20, 80, 40).astype(float)
    x = rng.binomial(n.astype(int), rng.beta(0.3, 2.7, 40)).astype(float)
    weights = rng.standard_exponential((400_000, 41))
    size = (n * n).sum() / n.sum()
    worst = ((x > 0).sum() * (x / n).max() + 1) / ((x > 0).sum() + 1)
    low = (weights[:, :-1] @ x) / (weights[:, :-1] @ n + weights[:, -1] * size)
    high = (weights[:, :-1] @ x + weights[:, -1] * size * worst) / (
        weights[:, :-1] @ n + weights[:, -1] * size
    )
    found = fraction_intervals(request_sums(x, n))
    assert found.low == pytest.approx(np.quantile(low, 0.025), rel=0.05)
    assert found.high == pytest.approx(np.quantile(high, 0.975), rel=0.05)


def test_the_p_value_and_the_lower_end_agree() -> None:
    sums = request_sums([[5, 9, 3, 0, 2, 7, 1, 0], [0, 0, 1, 0, 0, 0, 0, 0]], [20] * 8)
    low = fraction_intervals(sums).low
    assert exceedance_p_values(sums, low) == pytest.approx([0.025, 0.025])
    assert (exceedance_p_values(sums, low * 0.9) < 0.025).all()


def test_benjamini_yekutieli_q_values_follow_their_formula() -> None:
    # Three tests: the factor is 1 + 1/2 + 1/3 = 11/6; q = p · 3/rank · 11/6, made monotone from the largest.
    assert q_values([0.03, 0.001, 0.02]) == pytest.approx([0.055, 0.0055, 0.055])
    assert "Benjamini–Yekutieli" in PROCEDURE
    assert "at most the limit" in HYPOTHESIS


def test_a_q_value_is_never_larger_than_that_of_a_larger_p_value() -> None:
    # By rank alone 0.04 would get 0.11 and 0.0401 only 0.0735.
    assert q_values([0.01, 0.04, 0.0401]) == pytest.approx([0.055, 0.0401 * 11 / 6, 0.0401 * 11 / 6])


def test_no_test_gives_no_claim() -> None:
    assert q_values([]).size == 0


def test_the_jackknife_follows_its_formula() -> None:
    above, below = np.array([1.0, 2, 3, 4, 2, 3, 1, 4]), np.full(8, 10.0)
    found = jackknife_ratios(above, below)
    ratio = 20 / 80
    left_out = np.log((20 - above) / 70)
    variance = 7 / 8 * np.sum((left_out - np.log(ratio)) ** 2)
    half = 2.364624 * np.sqrt(variance)  # t, 7 degrees of freedom, 97.5 %
    assert found.ratio == ratio
    assert found.low == pytest.approx(ratio * np.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(ratio * np.exp(half), rel=1e-6)


@pytest.mark.parametrize(
    ("above", "below"),
    [([1.0] * 7, [10.0] * 7), ([5.0] + [0.0] * 15, [10.0] * 16), ([0.0] * 16, [10.0] * 16)],
)
def test_the_jackknife_gives_no_interval_from_too_few_groups(above: list[float], below: list[float]) -> None:
    found = jackknife_ratios(above, below)
    assert found.too_few_groups
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_an_empty_group_changes_nothing() -> None:
    above, below = [1.0, 2, 3, 4, 2, 3, 1, 4], [10.0] * 8
    assert jackknife_ratios([*above, 0.0], [*below, 0.0]).high == jackknife_ratios(above, below).high


def test_the_expected_maximum_is_the_mean_over_all_subsets() -> None:
    from itertools import combinations

    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    for drawn in range(1, 8):
        subsets = [max(subset) for subset in combinations(values, drawn)]
        assert expected_maximum(values, drawn) == pytest.approx(np.mean(subsets))


def test_the_p_value_of_a_ratio_agrees_with_its_interval() -> None:
    rng = np.random.default_rng(12)
    above, below = rng.gamma(2, 1, (200, 16)), rng.gamma(9, 1, (200, 16))
    found = jackknife_ratios(above, below)
    limit = 0.2
    exceeds = ratio_p_values(found, limit) < 0.025
    falls_short = ratio_p_values(found, limit, is_minimum=True) < 0.025
    np.testing.assert_array_equal(exceeds, found.low > limit)
    np.testing.assert_array_equal(falls_short, found.high < limit)
    assert 0 < exceeds.sum() < 200
    assert 0 < falls_short.sum() < 200


def test_a_ratio_of_too_few_groups_is_no_evidence_against_a_limit() -> None:
    found = jackknife_ratios([[9.0] * 7, [0.0] * 7], [[1.0] * 7, [1.0] * 7])
    assert ratio_p_values(found, 0.1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("drawn", [0, 4])
def test_more_requests_than_there_are_cannot_be_drawn(drawn: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3"):
        expected_maximum([1.0, 2.0, 3.0], drawn)


def test_many_thousand_requests_are_rarefied_without_overflow() -> None:
    assert expected_maximum(np.arange(20_000), 10_000) == pytest.approx(19_998.0, abs=1.1)


def test_a_candidate_that_covers_more_in_every_request_is_found_lower() -> None:
    n = np.full(30, 20.0)
    b = np.where(np.arange(30) < 20, 4.0, 0.0)
    found = paired_difference(np.zeros(30), b, n, nested=True)
    assert found.verdict == "lower"
    assert (found.num_lower, found.num_higher) == (20, 0)
    assert found.difference == pytest.approx(-80 / 600)
    assert found.low < found.difference < found.high < 0


def test_candidates_that_differ_nowhere_are_equal_with_an_honest_bound() -> None:
    found = paired_difference(np.ones(100), np.ones(100), np.full(100, 8.0), nested=True)
    assert found.verdict == "equal"
    assert found.high == pytest.approx(special.betaincinv(1, 100, 0.975), rel=0.1)
    assert found.low == pytest.approx(-found.high, rel=0.1)


def test_four_requests_are_too_few_to_tell_a_difference() -> None:
    assert paired_difference([0] * 4, [5] * 4, [5] * 4).verdict == "not enough to tell"


def test_swapping_the_candidates_changes_the_sign_alone() -> None:
    rng = np.random.default_rng(4)
    n = np.full(50, 30.0)
    a, b = rng.binomial(30, 0.1, 50), rng.binomial(30, 0.2, 50)
    one, other = paired_difference(a, b, n), paired_difference(b, a, n)
    assert one.difference == -other.difference
    assert one.low == pytest.approx(-other.high, rel=0.02)
