"""Where a head's clipping sits: the one workload, position or generation step that tells it best.

A head clips in some (request × position octave × step octave) units and not in others. Each split puts the
units into two parts; its deviance, that of a binomial with one rate against one with two, says how well it
tells them apart. The best split over the heads that agree on it is kept if requests, the independent unit,
support it (kvtrace.stats), its units are set aside, and the rest is asked again: several drifts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.findings.run.strata import ClippedUnits, Split, Stratum, strata_of
from kvtrace.stats.fractions import fraction_intervals, request_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.findings.finding import Head

_RATIO: Final = 5.0
"""Clipped vectors inside over outside from which it is a drift: workloads of real traffic under one scale
differ by up to 4."""
_SUPPORTED_RATIO: Final = 3.0
_MIN_SHARE: Final = 0.25
_MIN_TOLD: Final = 0.2
"""Of the deviance of one rate, what a split must explain. The first tokens of a request differ from all
others under any scale; they are too few to explain much."""
_MIN_TOLD_BY_PAIR: Final = 0.4
"""There are many more pairs to choose from."""
_MIN_OUTSIDE: Final = 0.05
"""Of the vectors: with less there is nothing to compare with."""
_MIN_LEFT: Final = 0.1
_MIN_REQUESTS: Final = 3
_MAX_DRIFTS: Final = 4
_ALIKE: Final = 0.98
"""Deviances this close belong to splits that the trace cannot tell apart."""
_MOST_EVENTS: Final = 0.5
"""Of what clips, in the heads that agree on a band or on several workloads: with so many to choose from one
head in ten agrees on some by chance, as rotary positions move a wide channel in and out of the range."""
_CLEARLY: Final = 1.1
"""Deviance over that of something simpler."""
_NEARLY_ALL: Final = 0.9
"""Share of what clips that lies in a part: however large that is, so that it explains little by itself."""
_MIN_MISSED: Final = 5.0
"""Requests outside a part in which clipping would be expected if they were like those inside. Fewer without
any say nothing: e^-5 is the chance to see none, and some dozens of parts are tried."""


@dataclass(frozen=True)
class Drift:
    """A split that holds."""

    split: Split
    heads: tuple[Head, ...]
    inside_frac: float
    inside_low: float
    outside_frac: float
    share: float
    """Of these heads' clipped vectors, inside."""
    num_requests: int
    """Requests inside, and affected there."""
    num_affected: int
    same_rows_as: Split | None
    """Another split that the trace cannot tell from this one."""


@dataclass(frozen=True)
class Located:
    """All drifts of some heads, and which heads clip elsewhere too."""

    drifts: tuple[Drift, ...]
    explained: frozenset[Head]
    """Heads of which next to nothing clips outside the drifts."""


def locate(units: ClippedUnits) -> Located:
    """Return the strata in which the heads clip, as far as requests support it."""
    strata = strata_of(units)
    complexity = np.array([one.complexity for one in strata])
    alive = np.ones_like(units.events)
    drifts: list[Drift] = []
    usable = np.ones(len(strata), dtype=bool)
    while usable.any() and len(drifts) < _MAX_DRIFTS:
        best = _simplest(units, strata, alive, usable, complexity)
        if best is None:
            break
        found = _supported(units, strata[best.number], alive, best)
        if not found:
            usable[best.number] = False
            continue
        drifts += found
        usable[:] = True  # what this drift hid can be told now
        alive[np.ix_(best.heads, strata[best.number].inside)] = 0
    left = (units.events * alive).sum(axis=1) / units.events.sum(axis=1)
    explained = frozenset(
        head for head, part in zip(units.heads, left, strict=True) if part <= _MIN_LEFT and drifts
    )
    return Located(tuple(drifts), explained)


@dataclass(frozen=True)
class _Best:
    number: int
    score: float
    heads: NDArray[np.int64]
    """Those that it serves."""
    alike: Split | None
    """Another split that tells as much."""


def _simplest(
    units: ClippedUnits,
    strata: Sequence[Stratum],
    alive: NDArray[np.float64],
    usable: NDArray[np.bool_],
    complexity: NDArray[np.int64],
) -> _Best | None:
    """Return the best simple part, unless a band or several workloads tell clearly more; then two parts."""
    simple = _best(units, strata, alive, usable & (complexity == 0), _MIN_TOLD)
    single = _best(units, strata, alive, usable & (complexity == 1), _MIN_TOLD, is_simple=False)
    if simple and not (single and single.score > _CLEARLY * simple.score):
        return simple
    both = _best(units, strata, alive, usable & (complexity == 2), _MIN_TOLD_BY_PAIR)
    return both if single is None or (both and both.score > _CLEARLY * single.score) else single


def _best(
    units: ClippedUnits,
    strata: Sequence[Stratum],
    alive: NDArray[np.float64],
    usable: NDArray[np.bool_],
    least_told: float,
    *,
    is_simple: bool = True,
) -> _Best | None:
    """Return the stratum of largest deviance over the heads that agree on it."""
    events, trials = units.events * alive, units.trials * alive
    is_open = events.sum(axis=1) > _MIN_LEFT * units.events.sum(axis=1)
    member = np.stack([one.inside for one in strata]).T.astype(np.float64)
    x1, n1 = events @ member, trials @ member
    x, n = events.sum(axis=1, keepdims=True), trials.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside, outside = x1 / n1, (x - x1) / (n - n1)
        serves = (inside >= _RATIO * outside) & (x1 >= _MIN_SHARE * x) & (n - n1 >= _MIN_OUTSIDE * n)
    serves &= is_open[:, None] & usable[None, :] & (n1 > 0)
    deviance = 2 * (_log_likelihood(x1, n1) + _log_likelihood(x - x1, n - n1) - _log_likelihood(x, n))
    score = np.where(serves, deviance, 0.0).sum(axis=0)
    untold = np.where(serves, -2 * _log_likelihood(x, n), 0.0).sum(axis=0)
    own = np.where(serves, x, 0.0).sum(axis=0)
    nearly_all = np.where(serves, x1, 0.0).sum(axis=0) >= _NEARLY_ALL * own
    is_of_most = own >= _MOST_EVENTS * x[is_open].sum()
    score = np.where((score >= least_told * untold) | (nearly_all & is_of_most), score, 0.0)
    score = np.where(is_of_most | is_simple, score, 0.0)
    if not score.max() > 0:
        return None
    number = int((score >= _ALIKE * score.max()).argmax())
    kinds = {part.kind for part in strata[number].parts}
    others = [
        one.parts[0]
        for place, one in enumerate(strata)
        if len(one.parts) == 1 and one.parts[0].kind not in kinds and score[place] >= _ALIKE * score[number]
    ]
    return _Best(
        number, float(score[number]), np.flatnonzero(serves[:, number]), others[0] if others else None
    )


def _log_likelihood(events: NDArray[np.float64], trials: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = events / trials
        terms = events * np.log(rate) + (trials - events) * np.log1p(-rate)
    return np.nan_to_num(terms, nan=0.0, posinf=0.0, neginf=0.0)


def _supported(units: ClippedUnits, stratum: Stratum, alive: NDArray[np.float64], best: _Best) -> list[Drift]:
    """Return a drift per part if requests put each part's share well above what clips outside all of them."""
    events = (units.events * alive)[best.heads].sum(axis=0)
    trials = (units.trials * alive)[best.heads].sum(axis=0)
    there = fraction_intervals(_per_request(units, events, trials, ~stratum.inside))
    drifts = []
    for part in stratum.parts:
        here = fraction_intervals(_per_request(units, events, trials, part.inside))
        share = events[part.inside].sum() / events.sum()
        enough = here.num_affected >= _MIN_REQUESTS and there.num_requests >= _MIN_REQUESTS
        if not there.num_affected:
            enough &= here.num_affected / here.num_requests * there.num_requests >= _MIN_MISSED
        if not (enough and here.low >= _SUPPORTED_RATIO * there.fraction and share >= _MIN_SHARE):
            return []
        drifts.append(
            Drift(
                split=part,
                heads=tuple(units.heads[number] for number in best.heads),
                inside_frac=float(here.fraction),
                inside_low=float(here.low),
                outside_frac=float(there.fraction),
                share=float(share),
                num_requests=int(here.num_requests),
                num_affected=int(here.num_affected),
                same_rows_as=best.alike,
            )
        )
    return drifts


def _per_request(
    units: ClippedUnits, events: NDArray[np.float64], trials: NDArray[np.float64], chosen: NDArray[np.bool_]
) -> Any:
    count = int(units.request.max()) + 1
    return request_sums(
        np.bincount(units.request[chosen], weights=events[chosen], minlength=count),
        np.bincount(units.request[chosen], weights=trials[chosen], minlength=count),
    )
