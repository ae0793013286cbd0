"""How many requests an answer takes, against hand calculation and simulated requests."""

from __future__ import annotations

import numpy as np
import pytest

from kvtrace.sample_size import design_effect, requests_for_margin, requests_without_event
from kvtrace.stats.fractions import fraction_intervals, request_sums


def test_one_vector_a_request_is_the_textbook_sample_size_of_a_fraction() -> None:
    # 1.96² · 0.5 · 0.5 / 0.03² = 1,067.1 (Cochran 1977, 4.4).
    assert requests_for_margin(0.5, 0.03, vectors_per_request=1, correlation=0.3) == 1068


def test_fully_correlated_vectors_count_as_one_a_request() -> None:
    assert design_effect(60, 1.0) == 60
    assert requests_for_margin(0.5, 0.03, vectors_per_request=60, correlation=1.0) == 1068


def test_independent_vectors_all_count() -> None:
    assert requests_for_margin(0.5, 0.03, vectors_per_request=10, correlation=0.0) == 107


@pytest.mark.parametrize(("fraction", "margin", "correlation"), [(0.05, 0.01, 0.1), (0.01, 0.005, 0.3)])
def test_in_95_percent_of_samples_of_that_size_the_estimate_is_within_the_margin(
    fraction: float, margin: float, correlation: float
) -> None:
    vectors, draws = 60, 2_000
    num = requests_for_margin(fraction, margin, vectors_per_request=vectors, correlation=correlation)
    rng = np.random.default_rng(5)
    strength = (1 - correlation) / correlation
    of_request = rng.beta(fraction * strength, (1 - fraction) * strength, size=(draws, num))
    events = rng.binomial(vectors, of_request)
    found = fraction_intervals(request_sums(events, np.full_like(events, vectors)))
    within = np.mean(np.abs(found.fraction - fraction) <= margin)
    assert 0.93 <= within <= 0.97
    assert 1.0 <= np.median(found.high - found.low) / (2 * margin) <= 1.25


def test_requests_without_an_event_put_the_upper_end_just_at_the_bound() -> None:
    num = requests_without_event(0.01)
    assert num is not None
    silent = [fraction_intervals(request_sums([0] * n, [16] * n)).high for n in (num - 1, num)]
    assert silent[0] > 0.01 >= silent[1]
    assert requests_without_event(0.5, worst_request=0.5) is None
    assert requests_without_event(1e-300) is None
