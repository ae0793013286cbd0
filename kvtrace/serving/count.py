"""One run's requests counted by class, in one pass."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.serving.judge import Outcome, Unmeasured, after_first, in_time, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.serving.contract import ServingLimits
    from kvtrace.serving.record import Served
    from kvtrace.serving.table import RunRecord


def _microseconds() -> array[int]:
    return array("q")


@dataclass(slots=True)
class ClassCount:
    """What was counted of one class. Latencies are those of requests that ended by the deadline."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    unjudged_in_time: int = 0
    retries: int = 0
    cost: float = 0.0
    num_with_cost: int = 0
    ttft: array[int] = field(default_factory=_microseconds)
    tpot: array[int] = field(default_factory=_microseconds)
    itl: Counter[int] = field(default_factory=Counter)
    """Gap to three digits → how many: a run has too many to keep each."""
    e2e: array[int] = field(default_factory=_microseconds)
    client_delay: array[int] = field(default_factory=_microseconds)
    """Of all offered requests that were sent."""
    engine_queue: array[int] = field(default_factory=_microseconds)
    engine_ttft: array[int] = field(default_factory=_microseconds)

    @property
    def offered(self) -> int:
        """Return how many requests were planned in the interval."""
        return self.outcomes.total()


@dataclass(slots=True)
class ToolCount:
    """Good requests as a load generator counts them."""

    good: int = 0
    wrong: int = 0
    unjudged: int = 0
    outside: int = 0
    late_by_plan: int = 0
    first_sent_us: int | None = None
    last_end_us: int | None = None


@dataclass(slots=True)
class RunCount:
    """What was counted of one run."""

    start_us: int | None
    """Of the interval; None: no measured request has a planned arrival."""
    classes: dict[str, ClassCount]
    num_before: int = 0
    num_after: int = 0
    num_in_drain: int = 0
    """Planned after the interval and before the deadline."""
    warmups: Counter[str] = field(default_factory=Counter)
    num_unclassed: int = 0
    num_without_plan: int = 0
    missing: set[str] = field(default_factory=set)
    """Times that a limit needs and the file has not."""
    last_done_us: int | None = None
    """Of requests planned in the interval."""
    tool: ToolCount | None = field(default_factory=ToolCount)
    """None: the file does not say when requests were sent."""
    output_tokens: dict[bytes, int] = field(default_factory=dict)
    """Digest of the id → tokens, of completed requests of the interval."""


def count_run(run: RunRecord, rows: Iterable[Served], limits: ServingLimits) -> RunCount:
    """Return what the rows of a run hold; every row is read."""
    start = None if run.first_planned_us is None else run.first_planned_us + limits.warmup_us
    found = RunCount(start, {name: ClassCount() for name in limits.classes})
    for row in rows:
        if row.phase != "measured":
            found.warmups[row.phase] += 1
            continue
        _count(row, found, limits)
    return found


def _count(row: Served, found: RunCount, limits: ServingLimits) -> None:
    name = limits.class_of(row)
    planned = row.planned_us
    if planned is None or found.start_us is None:
        found.num_without_plan += 1
        if name is not None:
            _latencies(row, row.dispatched_us, found.classes[name])
        return
    end = found.start_us + limits.interval_us
    deadline = end + limits.drain_us
    outcome: Outcome | None = None
    if planned < found.start_us:
        found.num_before += 1
    elif planned >= end:
        found.num_after += 1
        found.num_in_drain += planned < deadline
    elif name is None:
        found.num_unclassed += 1
    else:
        outcome = _in_cohort(row, name, found, limits, deadline)
    if name is not None:
        _as_tool(row, outcome, found, limits, name)


def _in_cohort(
    row: Served, name: str, found: RunCount, limits: ServingLimits, deadline: int
) -> Outcome | None:
    counted, of_class = found.classes[name], limits.classes[name]
    try:
        outcome = judge(row, of_class, deadline)
        if outcome == "unjudged" and in_time(row, of_class):
            counted.unjudged_in_time += 1
    except Unmeasured as lacks:
        found.missing.add(str(lacks))
        return None
    counted.outcomes[outcome] += 1
    counted.retries += row.retries
    if row.cost is not None:
        counted.cost += row.cost
        counted.num_with_cost += 1
    if row.dispatched_us is not None and row.planned_us is not None:
        counted.client_delay.append(row.dispatched_us - row.planned_us)
    if row.done_us is not None:
        found.last_done_us = _most(found.last_done_us, row.done_us)
    if outcome in ("accepted", "late", "wrong", "unjudged"):
        _latencies(row, row.planned_us, counted)
        if row.output_tokens is not None:
            digest = hashlib.blake2b(row.id.encode(), digest_size=8).digest()
            found.output_tokens[digest] = row.output_tokens
    return outcome


def _latencies(row: Served, start: int | None, counted: ClassCount) -> None:
    if start is None or row.status != "completed":
        return
    if row.first_us is not None:
        counted.ttft.append(row.first_us - start)
    if row.done_us is not None:
        counted.e2e.append(row.done_us - start)
    after = after_first(row)
    if after is not None and after[1]:
        counted.tpot.append(round(after[0] / after[1]))
    counted.itl.update(map(_three_digits, row.gaps_us or ()))
    if row.engine_queue_us is not None:
        counted.engine_queue.append(row.engine_queue_us)
    if row.engine_first_us is not None:
        counted.engine_ttft.append(row.engine_first_us)


def _three_digits(value: int) -> int:
    """Return a count of microseconds to the nearest of three digits.

    >>> [_three_digits(value) for value in (0, 999, 12_345, 12_355)]
    [0, 999, 12300, 12400]
    """
    unit = int("1" + "0" * (len(str(value)) - 3))
    return (value + unit // 2) // unit * unit


def _as_tool(row: Served, outcome: Outcome | None, found: RunCount, limits: ServingLimits, name: str) -> None:
    if found.tool is None:
        return
    if row.dispatched_us is None:
        if row.status == "completed":
            found.tool = None
        return
    tool = found.tool
    tool.first_sent_us = _least(tool.first_sent_us, row.dispatched_us)
    if row.done_us is not None:
        tool.last_end_us = _most(tool.last_end_us, row.done_us)
    try:
        if row.status != "completed" or not in_time(row, limits.classes[name], from_dispatch=True):
            return
    except Unmeasured:
        return
    tool.good += 1
    tool.outside += outcome is None
    tool.wrong += outcome == "wrong"
    tool.unjudged += outcome == "unjudged"
    tool.late_by_plan += outcome in ("late", "unfinished")


def _least(before: int | None, value: int) -> int:
    return value if before is None else min(before, value)


def _most(before: int | None, value: int) -> int:
    return value if before is None else max(before, value)
