"""The next experiment, named from the failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.decide.decision import Next, Word
from kvtrace.decide.rules import scales_to_blame
from kvtrace.decide.selected import pair_of, variant_of
from kvtrace.figures import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.decide.decision import Reason
    from kvtrace.decide.evidence import Found
    from kvtrace.serving.percentiles import Percentile

_FULL: Final = 0.9
"""Share of the cache from which it may be what limits."""


def next_steps(word: Word, found: Found, reasons: Sequence[Reason]) -> Iterator[Next]:
    """Yield what to try, the first first. Nothing is said of what was not measured."""
    if word is Word.collect_more or word is Word.invalid:
        yield Next(id="measure", text="measure what lacks; the reasons say what and how many")
        return
    if word is Word.roll_back:
        lost_answers = any(one.id in ("answers-lost", "activations-breach") for one in reasons)
        if scales_to_blame(found):
            yield Next(id="calibrate", text="new scales of a trace of this traffic: kvtrace mend")
        elif lost_answers and cache_is_limit(found):
            yield Next(
                id="exclude-layers",
                text="the cache limits and answers are lost: leave the most harmed layers out of FP8",
            )
        return
    if word is Word.retain:
        yield from _after_no_gain(found)


def _after_no_gain(found: Found) -> Iterator[Next]:
    engine = None if found.capacity is None else found.capacity.engine
    weights = None if engine is None else engine.weights_bytes
    pool = None if engine is None else engine.pool_bytes
    if weights is not None and pool is not None and weights > pool:
        yield Next(
            id="smaller-weights",
            text=f"weights take {weights:,} bytes and the cache {pool:,}: smaller weights give more room",
        )
    usage = _peak(found, "usage")
    if usage is not None and usage < _FULL:
        yield Next(
            id="offer-more",
            text=f"the cache was at most {percent(usage)} full: offer more load, or more room gains nothing",
        )
    elif usage is not None:
        yield Next(
            id="raise-admission",
            text="the cache was full and useful answers are no more: sweep the admission limit at this load",
        )
    if _memory_fell_and_latency_did_not(found):
        yield Next(
            id="profile-decode",
            text="the cache holds more tokens and TPOT did not fall: profile the decode kernels",
        )


def cache_is_limit(found: Found) -> bool:
    """Return whether requests waited for room in the candidate's cache, or it was full."""
    waiting, usage = _peak(found, "waiting: capacity"), _peak(found, "usage")
    return bool(waiting) or (usage is not None and usage >= _FULL)


def _peak(found: Found, name: str) -> float | None:
    peaks = [one.peaks[name] for one in variant_of(found, found.candidate).engine if name in one.peaks]
    return max(peaks, default=None)


def _memory_fell_and_latency_did_not(found: Found) -> bool:
    tokens = [
        max((one.num_tokens for one in variant_of(found, name).engine if one.num_tokens), default=None)
        for name in (found.baseline, found.candidate)
    ]
    pair = pair_of(found)
    if tokens[0] is None or tokens[1] is None or tokens[1] <= tokens[0] or pair is None:
        return False
    before, after = (_median_tpot(found, name) for name in (found.baseline, found.candidate))
    return before is not None and after is not None and after >= before


def _median_tpot(found: Found, name: str) -> float | None:
    """Return the middle of the runs' medians over all classes."""
    medians = sorted(
        value
        for run in found.goodput.runs
        if run.variant == name and not run.problems
        if (value := _median(run.all.latencies.tpot)) is not None
    )
    return medians[len(medians) // 2] if medians else None


def _median(found: tuple[Percentile, ...]) -> float | None:
    return next((one.value_ms for one in found if one.quantile == 0.5), None)
