"""How far log-probabilities move under each variant, beyond what BF16 moves from itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.quality.divergence import first_divergence
from kvtrace.quality.moved import Band, Beyond, LogprobComparison, Logprobs
from kvtrace.stats.bootstrap import mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvtrace.quality.moved import Mode
    from kvtrace.quality.scores import Scores, ScoreTable

    PerRequest = dict[int, float]
    """Request → mean over its steps."""

_P99: Final = 0.99


def compare_logprobs(table: ScoreTable, noise: str | None, confidence: float) -> LogprobComparison:
    """Return every variant of a table of scores beside its baseline, and beside `noise` if it is there."""
    noise = noise if noise in table.variants else None
    modes: list[Logprobs] = []
    by_mode: tuple[tuple[Mode, Scores], ...] = (("forced", table.forced), ("free", table.free))
    for mode, scores in by_mode:
        by_variant = {name: scores.of(scores.variant == at) for at, name in enumerate(table.variants)}
        again = by_variant[noise] if noise is not None else None
        modes.extend(
            _logprobs(name, mode, found, again, confidence)
            for name, found in by_variant.items()
            if name != noise and np.isfinite(found.delta).any()
        )
    return LogprobComparison(
        scores=str(table.path),
        baseline=table.baseline,
        noise=noise,
        modes=tuple(modes),
        divergence=tuple(
            first_divergence(name, table.free.of(table.free.variant == at), confidence)
            for at, name in enumerate(table.variants)
            if np.any(table.free.variant == at)
        ),
    )


def _logprobs(name: str, mode: Mode, found: Scores, again: Scores | None, confidence: float) -> Logprobs:
    def beyond(values: Callable[[Scores], NDArray[np.float64]]) -> Beyond | None:
        return _beyond(found, again, values, confidence)

    scored = np.isfinite(found.delta)
    delta, abs_delta, flips = beyond(_delta), beyond(_abs_delta), beyond(_flips)
    assert delta is not None and abs_delta is not None and flips is not None  # noqa: PT018 -- there are steps
    again_abs = np.abs(again.delta[np.isfinite(again.delta)]) if again is not None else np.empty(0)
    return Logprobs(
        variant=name,
        mode=mode,
        num_requests=len(np.unique(found.request)),
        num_steps=int(scored.sum()),
        delta=delta,
        abs_delta=abs_delta,
        p99_abs_delta=float(np.quantile(np.abs(found.delta[scored]), _P99)),
        noise_p99_abs_delta=float(np.quantile(again_abs, _P99)) if again_abs.size else None,
        flip_frac=flips,
        kl=beyond(lambda one: one.kl),
        perplexity=float(np.exp(-np.mean(found.logprob[scored]))),
        baseline_perplexity=float(np.exp(-np.mean((found.logprob - found.delta)[scored]))),
        by_step=_bands(found, again, lambda one: one.step, confidence),
        by_position=_bands(found, again, lambda one: one.position, confidence),
    )


def _bands(
    found: Scores, again: Scores | None, place: Callable[[Scores], NDArray[np.int64]], confidence: float
) -> tuple[Band, ...]:
    octaves = _octave(place(found))
    bands = []
    for octave in np.unique(octaves).tolist():
        here = found.of(octaves == octave)
        noise = None if again is None else again.of(_octave(place(again)) == octave)
        abs_delta = _beyond(here, noise, _abs_delta, confidence)
        flips = _beyond(here, noise, _flips, confidence)
        if abs_delta is not None and flips is not None:
            first = 0 if octave == 0 else 2 ** (octave - 1)
            num_steps = int(np.isfinite(here.delta).sum())
            bands.append(
                Band(
                    first=first, last=2**octave - 1, num_steps=num_steps, abs_delta=abs_delta, flip_frac=flips
                )
            )
    return tuple(bands)


def _octave(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, …"""
    return np.frexp(places.astype(np.float64))[1].astype(np.int64)


def _beyond(
    found: Scores,
    again: Scores | None,
    values: Callable[[Scores], NDArray[np.float64]],
    confidence: float,
) -> Beyond | None:
    mine, noise = _per_request(found, values), {} if again is None else _per_request(again, values)
    if not mine:
        return None
    both = sorted(mine.keys() & noise.keys())
    excess = np.array([mine[one] - noise[one] for one in both])
    ends = mean_interval(excess, confidence)
    return Beyond(
        variant=float(np.mean(list(mine.values()))),
        noise=float(np.mean([noise[one] for one in both])) if both else None,
        excess=float(excess.mean()) if both else None,
        low=ends.low if ends else None,
        high=ends.high if ends else None,
        num_requests=len(mine),
    )


def _per_request(scores: Scores, values: Callable[[Scores], NDArray[np.float64]]) -> PerRequest:
    found = values(scores)
    known = np.isfinite(found)
    requests, index = np.unique(scores.request[known], return_inverse=True)
    sums = np.bincount(index, found[known]) / np.bincount(index)
    return dict(zip(requests.tolist(), sums.tolist(), strict=True))


def _delta(scores: Scores) -> NDArray[np.float64]:
    return scores.delta


def _abs_delta(scores: Scores) -> NDArray[np.float64]:
    return np.abs(scores.delta)


def _flips(scores: Scores) -> NDArray[np.float64]:
    return scores.is_flip.astype(np.float64)
