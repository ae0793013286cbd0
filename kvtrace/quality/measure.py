"""The numbers of one segment: loss, rates, discordance, and what they have to do with noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.quality.comparison import Difference, Rate
from kvtrace.sample_size import pairs_for_margin, requests_for_margin, requests_without_event
from kvtrace.stats.fractions import fraction_intervals, request_sums
from kvtrace.stats.mcnemar import mcnemar_p
from kvtrace.stats.paired import paired_difference

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.quality.pairs import Pairs
    from kvtrace.quality.policy import SegmentLimits

_WIDTH: Final = 1.1
"""The interval's width over that of a score interval, simulated: 1.07 to 1.13."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One segment of a variant, before a verdict."""

    difference: Difference
    p_above: float
    """Of "the loss is at most the margin"."""
    num_baselines: int
    baseline_pass: Rate
    candidate_pass: Rate
    noise_discordant_frac: float | None
    more_than_noise: bool | None
    design_effect: float
    """Pairs that are worth one independent pair."""


def measure(pairs: Pairs, margin: float, confidence: float) -> Measured | None:
    """Return the numbers; None where there is no pair.

    With a complete second run of the baseline each answer counts twice for the candidate and once for each
    run, which halves the baseline's noise.
    """
    if not pairs.keys:
        return None
    runs = [pairs.baseline] if pairs.noise is None else [pairs.baseline, pairs.noise]
    failed_before = np.stack(runs).astype(np.int64).sum(axis=0)
    failed_after = len(runs) * pairs.candidate.astype(np.int64)
    differs = pairs.candidate != pairs.baseline
    noisy = None if pairs.noise is None else pairs.noise != pairs.baseline
    difference, p_above = _difference(pairs, failed_before, failed_after, len(runs), margin, confidence)
    return Measured(
        difference=difference,
        p_above=p_above,
        num_baselines=len(runs),
        baseline_pass=_pass_rate(pairs, failed_before, len(runs), confidence),
        candidate_pass=_pass_rate(pairs, failed_after, len(runs), confidence),
        noise_discordant_frac=None if noisy is None else float(noisy.mean()),
        more_than_noise=None if noisy is None else _more_than_noise(pairs, differs, noisy, confidence),
        design_effect=_design_effect(pairs, failed_after - failed_before),
    )


def measure_noise(pairs: Pairs, confidence: float) -> Difference | None:
    """Return the second run of the baseline, given as the candidate, against the first."""
    if not pairs.keys:
        return None
    before, after = pairs.baseline.astype(np.int64), pairs.candidate.astype(np.int64)
    return _difference(pairs, before, after, 1, 0.0, confidence)[0]


def pairs_missing(found: Measured, limits: SegmentLimits, confidence: float) -> int | None:
    """Return how many pairs more would tell in 8 of 10 samples; None: no number would, or it is not known.

    It takes the shares seen for the true ones; a gain counts as no loss.
    """
    assert limits.margin is not None
    assert limits.floor is not None
    assert limits.pairs is not None
    one = found.difference
    loss = max(0.0, one.loss)
    of_loss = pairs_for_margin(one.discordant_frac, limits.margin, loss=loss, confidence=confidence)
    unseen = requests_without_event(limits.margin, confidence=confidence)
    rate = found.candidate_pass.value
    if of_loss is None or unseen is None or not limits.floor < rate:
        return None
    of_floor = requests_for_margin(
        min(rate, 1 - 1 / (one.num_pairs + 1)), rate - limits.floor, vectors_per_request=1, correlation=0.0,
        confidence=confidence,
    )  # fmt: skip
    independent = max(_WIDTH**2 * of_loss, unseen, of_floor)
    needed = max(ceil(independent * found.design_effect), limits.pairs)
    return max(1, needed - one.num_pairs)


def _difference(
    pairs: Pairs,
    failed_before: NDArray[np.int64],
    failed_after: NDArray[np.int64],
    num_baselines: int,
    margin: float,
    confidence: float,
) -> tuple[Difference, float]:
    trials = _by_cluster(pairs, np.full(len(pairs.keys), num_baselines))
    found = paired_difference(
        _by_cluster(pairs, failed_after),
        _by_cluster(pairs, failed_before),
        trials,
        confidence=confidence,
        limit=margin,
    )
    lost = int(np.sum(pairs.candidate & ~pairs.baseline))
    won = int(np.sum(~pairs.candidate & pairs.baseline))
    assert found.p_above is not None
    return Difference(
        num_pairs=len(pairs.keys),
        num_clusters=found.num_requests,
        num_lost=lost,
        num_won=won,
        loss=found.difference,
        low=found.low,
        high=found.high,
        low_error=found.low_error,
        high_error=found.high_error,
        discordant_frac=(lost + won) / len(pairs.keys),
        mcnemar_p=mcnemar_p(lost, won) if found.num_requests == len(pairs.keys) else None,
    ), found.p_above


def _pass_rate(pairs: Pairs, failed: NDArray[np.int64], runs: int, confidence: float) -> Rate:
    trials = _by_cluster(pairs, np.full(len(pairs.keys), runs))
    found = fraction_intervals(request_sums(_by_cluster(pairs, failed), trials), confidence=confidence)
    return Rate(
        value=1 - float(found.fraction),
        low=1 - float(found.high),
        high=None if found.too_few_requests else 1 - float(found.low),
    )


def _more_than_noise(
    pairs: Pairs, differs: NDArray[np.bool_], noisy: NDArray[np.bool_], confidence: float
) -> bool:
    found = paired_difference(
        _by_cluster(pairs, differs),
        _by_cluster(pairs, noisy),
        _by_cluster(pairs, np.ones(len(pairs.keys))),
        confidence=confidence,
    )
    return found.low - found.low_error > 0


def _design_effect(pairs: Pairs, gap: NDArray[np.int64]) -> float:
    """Return the variance of the mean gap over that of independent pairs; at least 1.

    Without any gap nothing says how clusters hang together: a cluster then counts as one pair.
    """
    sizes = _by_cluster(pairs, np.ones(len(pairs.keys)))
    mean = float(gap.mean())
    independent = float(np.sum((gap - mean) ** 2))
    if independent == 0:
        return float(np.mean(sizes))
    return max(1.0, float(np.sum((_by_cluster(pairs, gap) - mean * sizes) ** 2)) / independent)


def _by_cluster(pairs: Pairs, values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.bincount(pairs.cluster, weights=values.astype(np.float64)).astype(np.float64)
