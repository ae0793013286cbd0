"""Seeded simulations: do the intervals cover what they say, and do simpler ones fail where these hold?

Each draw is a sample of requests whose vectors are correlated (intraclass correlation 0.1). The rivals are
written here from their textbooks, not from kvtrace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import special

from kvtrace.stats.discoveries import q_values
from kvtrace.stats.fractions import exceedance_p_values, fraction_intervals, request_sums
from kvtrace.stats.jackknife import jackknife_ratios, ratio_p_values
from kvtrace.stats.paired import paired_difference
from kvtrace.trace.cells import request_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DRAWS = 2_000
CORRELATION = 0.1


def draw(law: str, sizes: str, num_requests: int, p: float, seed: int = 7) -> tuple[Any, Any]:
    """Return events and trials, [DRAWS, num_requests], of requests whose mean fraction is p."""
    rng = np.random.default_rng(seed)
    shape = (DRAWS, num_requests)
    n = {
        "equal": lambda: np.full(shape, 50),
        "long": lambda: np.full(shape, 500),
        "spread": lambda: rng.integers(10, 91, shape),
        "lognormal": lambda: np.maximum(np.rint(np.exp(rng.normal(3.5, 1.0, shape))), 1).astype(int),
    }[sizes]()
    strength = 1 / CORRELATION - 1
    severity = p + CORRELATION * (1 - p)
    q = {
        "beta": lambda: rng.beta(p * strength, (1 - p) * strength, shape),
        "few bad requests": lambda: severity * (rng.random(shape) < p / severity),
        "all or nothing": lambda: 1.0 * (rng.random(shape) < p),
    }[law]()
    return rng.binomial(n, q).astype(float), n.astype(float)


def kvtrace_interval(x: Any, n: Any) -> tuple[Any, Any]:
    found = fraction_intervals(request_sums(x, n))
    return found.low, found.high


def clopper_pearson(events: Any, trials: Any) -> tuple[Any, Any]:
    low = special.betaincinv(np.maximum(events, 1e-9), trials - events + 1, 0.025)
    high = special.betaincinv(events + 1, np.maximum(trials - events, 1e-9), 0.975)
    return np.where(events > 0, low, 0.0), np.where(events < trials, high, 1.0)


def plain_binomial(x: Any, n: Any) -> tuple[Any, Any]:
    return clopper_pearson(x.sum(1), n.sum(1))


def linearized(x: Any, n: Any) -> tuple[Any, Any]:
    p, variance, t = _linearized(x, n)
    return p - t * np.sqrt(variance), p + t * np.sqrt(variance)


def korn_graubard(x: Any, n: Any) -> tuple[Any, Any]:
    p, variance, t = _linearized(x, n)
    total = n.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.where(variance > 0, p * (1 - p) / variance, total)
    effective = np.minimum(effective * (special.stdtrit(total - 1, 0.975) / t) ** 2, total)
    return clopper_pearson(p * effective, effective)


def _linearized(x: Any, n: Any) -> tuple[Any, Any, Any]:
    num_requests, total = x.shape[1], n.sum(1)
    p = x.sum(1) / total
    variance = num_requests / (num_requests - 1) * ((x - p[:, None] * n) ** 2).sum(1) / total**2
    return p, variance, special.stdtrit(num_requests - 1, 0.975)


def coverage(interval: Callable[[Any, Any], tuple[Any, Any]], x: Any, n: Any, p: float) -> float:
    low, high = interval(x, n)
    return float(np.mean((low <= p) & (p <= high)))


LAWS = ["beta", "few bad requests"]
SIZES = ["equal", "long", "spread"]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("law", LAWS)
def test_coverage_is_93_to_99_percent_at_one_percent_and_100_requests(law: str, sizes: str) -> None:
    x, n = draw(law, sizes, 100, 0.01)
    assert 0.93 <= coverage(kvtrace_interval, x, n, 0.01) <= 0.99


@pytest.mark.parametrize(
    ("law", "p"),
    [(law, p) for law in (*LAWS, "all or nothing") for p in (0.1, 0.01, 0.001)]
    + [("beta", 0.5), ("all or nothing", 0.5)],
)
@pytest.mark.parametrize("num_requests", [5, 10, 30, 100])
@pytest.mark.parametrize("sizes", [*SIZES, "lognormal"])
def test_coverage_is_never_below_93_percent(law: str, sizes: str, num_requests: int, p: float) -> None:
    x, n = draw(law, sizes, num_requests, p)
    assert coverage(kvtrace_interval, x, n, p) >= 0.93


@pytest.mark.parametrize("p", [0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("num_requests", [3, 4])
@pytest.mark.parametrize("sizes", [*SIZES, "lognormal"])
def test_the_lower_end_holds_from_three_requests_on(sizes: str, num_requests: int, p: float) -> None:
    x, n = draw("beta", sizes, num_requests, p)
    low, _ = kvtrace_interval(x, n)
    assert np.mean(low > p) <= 0.025 + 3 * np.sqrt(0.025 / DRAWS)


@pytest.mark.parametrize("rival", [plain_binomial, linearized, korn_graubard])
@pytest.mark.parametrize(("num_requests", "p"), [(10, 0.01), (30, 0.01), (100, 0.001)])
def test_binomial_linearized_and_korn_graubard_intervals_fail_where_events_are_rare(
    rival: Callable[[Any, Any], tuple[Any, Any]], num_requests: int, p: float
) -> None:
    x, n = draw("beta", "long", num_requests, p)
    assert coverage(rival, x, n, p) < 0.90
    assert coverage(kvtrace_interval, x, n, p) >= 0.93


@pytest.mark.parametrize("rival", [plain_binomial, linearized])
def test_plain_binomial_and_linearized_intervals_fail_even_at_100_requests(
    rival: Callable[[Any, Any], tuple[Any, Any]],
) -> None:
    x, n = draw("beta", "equal", 100, 0.01)
    assert coverage(rival, x, n, 0.01) < 0.93


def heads_sharing_requests(
    p: NDArray[np.float64], num_requests: int, draws: int, seed: int = 3
) -> tuple[Any, Any]:
    """Return events [draws, heads, requests] and trials; a bad request is bad for most heads at once."""
    rng = np.random.default_rng(seed)
    severity, n = 0.2, 40
    shared = rng.normal(size=(draws, 1, num_requests))
    own = rng.normal(size=(draws, p.size, num_requests))
    bad = np.sqrt(0.8) * shared + np.sqrt(0.2) * own > special.ndtri(1 - p / severity)[None, :, None]
    return rng.binomial(n, severity * bad).astype(float), np.full(bad.shape, float(n))


def test_the_false_discovery_rate_stays_at_its_level_when_heads_share_requests() -> None:
    limit = 0.02
    p = np.r_[np.full(36, limit), np.full(4, 8 * limit)]  # the first 36 are within, by nothing to spare
    x, n = heads_sharing_requests(p, 60, 1_000)
    sums = request_sums(x, n)
    found = np.array([_claims(sums, draw, limit) for draw in range(1_000)])
    assert _false_discovery_rate(found, 36) <= 0.05
    assert found[:, 36:].mean() > 0.9  # and those that do exceed are found

    naive = special.betainc(np.maximum(x.sum(2), 1e-9), n.sum(2) - x.sum(2) + 1, limit)
    claimed = np.array([q_values(row) <= 0.05 for row in naive])
    assert _false_discovery_rate(claimed, 36) > 0.05


def _claims(sums: Any, draw: int, limit: float) -> Any:
    one = type(sums)(*(getattr(sums, name)[draw] for name in sums.__slots__))
    return q_values(exceedance_p_values(one, limit)) <= 0.05


def _false_discovery_rate(claimed: Any, num_true_nulls: int) -> float:
    false = claimed[:, :num_true_nulls].sum(1)
    return float(np.mean(false / np.maximum(claimed.sum(1), 1)))


def test_a_single_test_at_the_limit_errs_no_more_often_than_it_says() -> None:
    x, n = draw("beta", "spread", 50, 0.01)
    p_values = exceedance_p_values(request_sums(x, n), 0.01)
    for level in (0.01, 0.025, 0.05):
        assert np.mean(p_values <= level) <= level + 3 * np.sqrt(level / DRAWS)


def test_the_paired_difference_covers_with_correlated_requests() -> None:
    rng = np.random.default_rng(5)
    shape = (1_000, 60)
    n = rng.integers(20, 60, shape).astype(float)
    base = rng.beta(0.3, 2.7, shape)
    a = rng.binomial(n.astype(int), base)
    b = rng.binomial(n.astype(int), np.clip(base * 0.6, 0, 1))
    truth = 0.1 * (1 - 0.6)
    hits = 0
    for events_a, events_b, trials in zip(a, b, n, strict=True):
        found = paired_difference(events_a, events_b, trials)
        hits += found.low <= truth <= found.high
    assert 0.93 <= hits / shape[0] <= 0.995


@pytest.mark.parametrize("num_requests", [100, 400])
def test_the_jackknife_of_a_value_ratio_covers_where_it_gives_an_interval(num_requests: int) -> None:
    x, n = draw("beta", "equal", num_requests, 0.01)
    group = np.random.default_rng(11).integers(0, 16, x.shape)
    above, below = (np.stack([(v * (group == g)).sum(1) for g in range(16)], axis=1) for v in (x, n))
    found = jackknife_ratios(above, below)
    given = ~found.too_few_groups
    assert given.sum() >= 400
    covered = (found.low <= 0.01) & (found.high >= 0.01)
    assert covered[given].mean() >= 0.91


def test_a_ratio_at_its_limit_is_rarely_called_beyond_it() -> None:
    x, n = draw("beta", "spread", 200, 0.01)
    group = request_group(np.arange(200))
    above, below = (np.stack([v[:, group == g].sum(1) for g in range(16)], axis=1) for v in (x, n))
    p_values = ratio_p_values(jackknife_ratios(above, below), 0.01)
    for level in (0.01, 0.025, 0.05):
        assert np.mean(p_values <= level) <= level + 3 * np.sqrt(level / DRAWS)
