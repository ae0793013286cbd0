"""How many requests an answer takes. It needs no dependency, so that `kvtrace capture plan` needs none."""

from __future__ import annotations

from math import ceil, log, log1p
from statistics import NormalDist
from typing import Final

_MOST_REQUESTS: Final = 10**9


def design_effect(vectors_per_request: float, correlation: float) -> float:
    """Return how many vectors in requests of m are worth one independent vector: 1 + (m − 1)·ρ.

    correlation: ρ, between the events of two vectors of one request; 0 to 1. Source: Kish, "Survey Sampling"
    (1965), section 5.4, for clusters of equal size.

    >>> design_effect(1, 0.5), design_effect(65, 0.125)
    (1.0, 9.0)
    """
    return 1 + (vectors_per_request - 1) * correlation


def requests_for_margin(
    fraction: float,
    margin: float,
    *,
    vectors_per_request: float,
    correlation: float,
    confidence: float = 0.95,
) -> int:
    """Return how many requests put the interval of a fraction of vectors at fraction ± margin.

    fraction: p, expected; margin: e; both in (0, 1). vectors_per_request: m, of one head. With z the normal
    quantile, z²·p·(1 − p) / e² independent vectors would do; clustered in requests it takes `design_effect`
    times as many, and each request brings m of them. Source: Cochran, "Sampling Techniques" (1977), 4.4, and
    Kish as above. In 95 % of samples of that size the estimate is within e of p; `fraction_intervals`, which
    is made for rare events, is some 1.2 times as wide (tests/test_sample_size.py). Where p is so small that
    no request may have an event, `requests_without_event` is the one to ask.

    >>> requests_for_margin(0.5, 0.1, vectors_per_request=1, correlation=0.0)
    97
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    independent = z * z * fraction * (1 - fraction) / margin**2
    return ceil(independent * design_effect(vectors_per_request, correlation) / vectors_per_request)


def requests_without_event(
    bound: float, *, confidence: float = 0.95, worst_request: float = 1.0
) -> int | None:
    """Return how many requests without one event put the upper end at the bound.

    None: no number does, or only more than a billion. worst_request: the largest share of one request's
    vectors that can be events. That of `kvtrace.stats.fraction_intervals`: (1 − bound / worst_request)^n is
    at most half of 1 − confidence.

    >>> requests_without_event(0.01), requests_without_event(0.0)
    (368, None)
    """
    share = bound / worst_request
    if not 0 < share < 1:
        return None
    needed = log((1 - confidence) / 2) / log1p(-share)
    return ceil(needed) if needed <= _MOST_REQUESTS else None


def pairs_for_margin(
    discordant: float, margin: float, *, loss: float = 0.0, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """Return how many independent pairs tell a loss from a margin, in `power` of samples; None: no number.

    discordant: d, share of pairs that differ, either way; margin: M; loss: Δ, the true one; all as fractions.
    (z₁₋α + z_power)²·(d − Δ²) / (M − Δ)², with α half of 1 − confidence. Source: Connor, "Sample size for
    testing differences in proportions for the paired-sample design" (1987), Biometrics 43, with a margin.

    >>> pairs_for_margin(0.04, 0.01, confidence=0.9), pairs_for_margin(0.02, 0.01, loss=0.01)
    (2474, None)
    """
    if loss == margin:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2) + NormalDist().inv_cdf(power)
    return ceil(z * z * (discordant - loss * loss) / (margin - loss) ** 2)
