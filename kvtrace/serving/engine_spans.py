"""What a variant's server reported, cut to the intervals of its runs where the clocks allow it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from kvtrace.serving.report import EngineSpan
from kvtrace.serving.scrapes import num_restarts, spans, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.serving.contract import ServingLimits
    from kvtrace.serving.scrapes import Scrape, Span
    from kvtrace.serving.table import RunRecord

_SECOND_US: Final = 1_000_000
_EPOCH_US: Final = 10**15
"""September 2001: a clock that shows less counts from a start of its own, as `perf_counter` does."""
_SAME: Final = ("num_scrapes", "cache_dtype", "num_blocks", "num_tokens", "peaks")


def engine_part(
    scrapes: Sequence[Scrape] | None, runs: Sequence[RunRecord], limits: ServingLimits
) -> dict[str, object]:
    """Return `engine`, `restarts` and `is_cut` of a variant. scrapes: None: there is none."""
    if scrapes is None:
        return {"engine": (), "restarts": None, "is_cut": False}
    cut = [_of_run(scrapes, run, limits) for run in runs]
    if cut and all(found for found, _ in cut):
        lives = [life for found, _ in cut for life in found]
        return {
            "engine": tuple(_told(one) for one in lives),
            "restarts": sum(restarts for _, restarts in cut),
            "is_cut": True,
        }
    lives = spans(scrapes)
    return {
        "engine": tuple(_told(one) for one in lives),
        "restarts": num_restarts(lives) if lives else None,
        "is_cut": False,
    }


def _of_run(scrapes: Sequence[Scrape], run: RunRecord, limits: ServingLimits) -> tuple[list[Span], int]:
    """Return the lives of the server in a run's interval, and its restarts until the run's deadline."""
    first = run.first_planned_us
    if first is None or first < _EPOCH_US:
        return [], 0
    start = first + limits.warmup_us
    end = start + limits.interval_us
    restarts = num_restarts(spans(within(scrapes, first, end + limits.drain_us)))
    return spans(within(scrapes, start, end)), restarts


def _told(one: Span) -> EngineSpan:
    return EngineSpan(
        begin_s=None if one.begin_us is None else one.begin_us / _SECOND_US,
        end_s=None if one.end_us is None else one.end_us / _SECOND_US,
        grown=one.counters,
        **{key: value for key, value in asdict(one).items() if key in _SAME},
    )
