"""Whether a baseline still fits once its larger cache is back: the limit to set before going back.

A deployment admits up to a limit of requests at a time. Under the candidate's cache they fit; the baseline's
holds fewer tokens, so that requests wait or are preempted unless the limit is lowered first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

if TYPE_CHECKING:
    from kvtrace.capacity.lengths import Lengths
    from kvtrace.capacity.plan import CachePlan

Basis = Literal["worst", "planned", "simulated"]
"""worst: every request at full length. planned: each class at the length that 95 % of it do not exceed.
simulated: requests drawn from a trace."""

DRAWS: Final = 10_000
RISK: Final = 0.01
_SEED: Final = 20_270_101
_DRAWS_AT_ONCE: Final = 500
_MOST_LIMIT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Headroom:
    """One basis: whether a limit fits a cache, and the largest that does."""

    basis: Basis
    blocks_needed: float | None
    """By all requests of the limit; None for draws, which differ."""
    overflow_frac: float | None
    """Of the draws, those that need more blocks than there are; None where nothing is drawn."""
    fits: bool
    largest_limit: int


def headroom(plan: CachePlan, num_blocks: int, limit: int, lengths: Lengths | None) -> tuple[Headroom, ...]:
    """Return whether `limit` requests fit `num_blocks`, of which one never holds tokens.

    Each request's tokens are rounded up to whole blocks in each group of layers. lengths: None: only the
    worst case is told; without counts, the worst and the planned.
    """
    usable = num_blocks - 1
    full = plan.blocks_per_request
    found = [Headroom("worst", float(limit * full), None, limit * full <= usable, max(0, usable // full))]
    if lengths is None:
        return tuple(found)
    mean = sum(
        Fraction(one.share).limit_denominator(10**9)
        * plan.pool.blocks_of(_held(plan, one.planned_tokens), plan.serving)
        for one in lengths.classes
    )
    needed = limit * mean
    found.append(Headroom("planned", float(needed), None, needed <= usable, max(0, int(usable / mean))))
    if lengths.counts:
        found.append(_simulated(plan, usable, limit, lengths))
    return tuple(found)


def _simulated(plan: CachePlan, usable: int, limit: int, lengths: Lengths) -> Headroom:
    requests_of: dict[int, int] = {}
    for length, count in lengths.counts.items():
        taken = plan.pool.blocks_of(_held(plan, length), plan.serving)
        requests_of[taken] = requests_of.get(taken, 0) + count
    blocks = np.array(list(requests_of), dtype=np.int64)
    shares = np.array(list(requests_of.values()), dtype=np.float64)
    shares /= shares.sum()
    overflow = _overflow(blocks, shares, limit, usable)
    low, high = usable // int(blocks.max()), min(_MOST_LIMIT, usable // int(blocks.min()))
    while low < high:  # the largest limit whose draws overflow seldom enough
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _overflow(blocks, shares, middle, usable) <= RISK else (low, middle - 1)
    return Headroom("simulated", None, overflow, overflow <= RISK, max(0, low))


def _overflow(
    blocks: np.ndarray[tuple[int], np.dtype[np.int64]],
    shares: np.ndarray[tuple[int], np.dtype[np.float64]],
    limit: int,
    usable: int,
) -> float:
    """Return the share of DRAWS sets of `limit` requests that need more blocks than are usable."""
    chance = np.random.default_rng(_SEED)
    over = 0
    for _ in range(DRAWS // _DRAWS_AT_ONCE):
        drawn = chance.multinomial(limit, shares, size=_DRAWS_AT_ONCE)
        over += int((drawn @ blocks > usable).sum())
    return over / DRAWS


def _held(plan: CachePlan, num_tokens: int) -> int:
    return min(num_tokens, plan.serving.max_model_len)
