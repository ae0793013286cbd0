"""How long a variant writes what BF16 writes: Kaplan and Meier over first differing steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.quality.moved import Divergence, Identical
from kvtrace.stats.bootstrap import MIN_REQUESTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.quality.scores import Scores

_DRAWS: Final = 500
_SEED: Final = 20_029


def first_divergence(variant: str, free: Scores, confidence: float) -> Divergence:
    """Return how long a variant's answers stay those of the baseline.

    free: its steps, of which the last one of a request has no log-probability where the answers differ.
    """
    lengths, diverged = _ends(free)
    steps = _doubling(int(lengths.max(initial=1)))
    share = survival(lengths, diverged)
    low, high = _median_ends(lengths, diverged, confidence)
    return Divergence(
        variant=variant,
        num_requests=len(lengths),
        num_identical=int(np.sum(~diverged)),
        identical=tuple(
            Identical(
                steps=step,
                frac=float(share[min(step, len(share) - 1)]),
                num_at_risk=int(np.sum(lengths >= step)),
            )
            for step in steps
        ),
        median_step=_median(share),
        low=low,
        high=high,
    )


def survival(lengths: NDArray[np.int64], diverged: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share still identical after 0, 1, 2, … steps, by Kaplan and Meier (1958).

    lengths: [requests], steps until the answers differed, that step included, or until both ended.
    diverged: [requests], whether they differed then.

    >>> survival(np.array([1, 2, 2, 3]), np.array([True, True, False, True])).round(4).tolist()
    [1.0, 0.75, 0.5, 0.0]
    """
    most = int(lengths.max(initial=0))
    events = np.bincount(lengths[diverged], minlength=most + 1).astype(np.float64)
    ended = np.bincount(lengths, minlength=most + 1)
    at_risk = len(lengths) - np.concatenate([[0], np.cumsum(ended)[:-1]])
    return np.asarray(np.cumprod(1 - events / np.maximum(at_risk, 1)))


def _ends(free: Scores) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    requests, index = np.unique(free.request, return_inverse=True)
    lengths = np.zeros(len(requests), dtype=np.int64)
    np.maximum.at(lengths, index, free.step + 1)
    diverged = np.zeros(len(requests), dtype=np.bool_)
    np.logical_or.at(diverged, index, ~np.isfinite(free.delta))
    return lengths, diverged


def _doubling(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _median(share: NDArray[np.float64]) -> int | None:
    reached = np.flatnonzero(share <= 0.5)
    return int(reached[0]) if reached.size else None


def _median_ends(
    lengths: NDArray[np.int64], diverged: NDArray[np.bool_], confidence: float
) -> tuple[int | None, int | None]:
    """Return the ends of the median, requests drawn anew with replacement, seeded."""
    if len(lengths) < MIN_REQUESTS:
        return None, None
    random = np.random.default_rng(_SEED)
    draws = []
    for _ in range(_DRAWS):
        drawn = random.integers(0, len(lengths), len(lengths))
        median = _median(survival(lengths[drawn], diverged[drawn]))
        draws.append(np.inf if median is None else float(median))
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, (tail, 1 - tail), method="nearest").tolist()
    return (int(low) if np.isfinite(low) else None, int(high) if np.isfinite(high) else None)
