"""From what was counted of a run to what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count
from kvtrace.serving.count import ClassCount
from kvtrace.serving.percentiles import nearest_rank, percentiles, percentiles_of_counts
from kvtrace.serving.report import ClassGoodput, Latencies, Note, Problem, RunGoodput, ToolNumber

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.serving.contract import Contract
    from kvtrace.serving.count import RunCount
    from kvtrace.serving.table import RunRecord

_SECOND_US: Final = 1_000_000
_HOUR_S: Final = 3600
_GENERATOR_FRAC: Final = 0.1
"""Of the TTFT limit that the generator's own delay may take in its 99 %."""
_FILLED_FRAC: Final = 0.9
"""Of the interval, that arrivals must reach into."""
_GOES_ON_FRAC: Final = 0.5
"""Of the interval's rate, that arrivals must keep during the drain."""


def run_goodput(run: RunRecord, found: RunCount, contract: Contract) -> RunGoodput:
    """Return what is said of one run. Where a problem stands, no goodput is told."""
    limits = contract.serving
    problems = tuple(_problems(run, found, contract))
    total = _total(found.classes.values())
    told = not problems
    stopped = _load_stopped(found, contract, total) if found.start_us is not None else None
    drain_used = _drain_used(found, contract, total)
    on_plan = found.start_us is not None
    return RunGoodput(
        variant=run.variant,
        repetition=run.repetition,
        name=run.name,
        format=run.format,
        load=run.load,
        rate=run.rate,
        latency_clock="planned" if on_plan else "dispatch",
        problems=problems,
        notes=tuple(_notes(run, total, stopped=stopped)),
        num_before=found.num_before,
        num_after=found.num_after,
        num_engine_warmup=found.warmups["engine warm-up"],
        num_prefix_warmup=found.warmups["prefix warm-up"],
        num_unclassed=found.num_unclassed,
        drain_used_s=None if drain_used is None else drain_used / _SECOND_US,
        load_stopped=stopped,
        cost_per_accepted=_hourly(contract, total, drain_used if stopped else 0) if told else None,
        recorded_cost_per_accepted=_recorded(total) if told else None,
        classes=tuple(_class(name, one, contract, told=told) for name, one in found.classes.items()),
        all=_class("all", total, contract, told=told),
        tool=_tool(run, found, limits.interval_us),
    )


def _problems(run: RunRecord, found: RunCount, contract: Contract) -> Iterator[Problem]:
    limits = contract.serving
    if run.refused is not None:
        yield Problem(id="refused", text=run.refused)
        return
    if run.load == "closed":
        yield Problem(
            id="closed-loop",
            text="closed loop: each request waits for another's answer, so a slow server is asked less",
        )
    elif run.load == "burst":
        yield Problem(
            id="burst", text="all requests came at once: there is no arrival process to hold a rate"
        )
    elif run.load == "unknown":
        yield Problem(
            id="load-not-said", text="the file does not say how load was offered; say it with --load"
        )
    if found.num_without_plan or found.start_us is None:
        yield Problem(
            id="no-plan", text=f"{count(found.num_without_plan, 'request')} without a planned arrival"
        )
        return
    if found.missing:
        yield Problem(
            id="time-missing", text=f"a limit needs {'; '.join(sorted(found.missing))}: not in the file"
        )
    if found.num_unclassed:
        yield Problem(
            id="no-class", text=f"{count(found.num_unclassed, 'request')} of no class of the contract"
        )
    last = run.last_planned_us
    if last is None or last < found.start_us + _FILLED_FRAC * limits.interval_us:
        seen = 0 if last is None else max(0, last - found.start_us)
        yield Problem(
            id="interval-not-filled",
            text=f"arrivals end {seen / _SECOND_US:.3g} s into the interval of {limits.interval_s:g} s",
        )
    for name, one in found.classes.items():
        ttft = limits.classes[name].ttft_us
        if ttft is None or not one.client_delay:
            continue
        late = nearest_rank(sorted(one.client_delay), 0.99)
        if late > _GENERATOR_FRAC * ttft:
            yield Problem(
                id="generator-late",
                text=f"{name}: the load generator sent 1 in 100 more than {late / 1000:,.4g} ms after the "
                "plan, over a tenth of the TTFT limit: it was the bottleneck",
            )


def _notes(run: RunRecord, total: ClassCount, *, stopped: bool | None) -> Iterator[Note]:
    if run.planned_source == "dispatch":
        yield Note(
            id="plan-is-dispatch",
            text="arrivals are taken from sending: how late the generator itself was is not recorded",
        )
    if stopped:
        yield Note(id="load-stopped", text="arrivals ended with the interval: an emptying server is faster")
    if total.outcomes["unjudged"]:
        yield Note(
            id="unjudged",
            text=f"{count(total.outcomes['unjudged'], 'answer')} not judged: goodput is a range",
        )
    if run.stamps == "chunks":
        yield Note(id="chunks", text="the tool times chunks of a stream, which may hold several tokens")


def _total(classes: Iterable[ClassCount]) -> ClassCount:
    total = ClassCount()
    for one in classes:
        total.outcomes.update(one.outcomes)
        for name in ("unjudged_in_time", "retries", "cost", "num_with_cost"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        total.itl.update(one.itl)
        for name in Latencies.model_fields.keys() - {"itl"}:
            getattr(total, name).extend(getattr(one, name))
    return total


def _class(name: str, one: ClassCount, contract: Contract, *, told: bool) -> ClassGoodput:
    interval_s = contract.serving.interval_us / _SECOND_US
    outcomes = one.outcomes
    lost = outcomes["rejected"] + outcomes["failed"] + outcomes["unfinished"]
    is_told = told and one.offered > 0
    return ClassGoodput(
        name=name,
        offered=one.offered,
        accepted=outcomes["accepted"],
        late=outcomes["late"],
        wrong=outcomes["wrong"],
        unjudged=outcomes["unjudged"],
        unjudged_in_time=one.unjudged_in_time,
        rejected=outcomes["rejected"],
        failed=outcomes["failed"],
        unfinished=outcomes["unfinished"],
        goodput=outcomes["accepted"] / interval_s if is_told else None,
        goodput_most=(outcomes["accepted"] + one.unjudged_in_time) / interval_s if is_told else None,
        accepted_frac=outcomes["accepted"] / one.offered if is_told else None,
        completed=one.offered - lost,
        retries=one.retries,
        latencies=Latencies(
            itl=percentiles_of_counts(one.itl),
            **{
                kind: percentiles(values, 0 if kind in _OF_ALL else lost, contract.confidence)
                for kind in Latencies.model_fields.keys() - {"itl"}
                if len(values := getattr(one, kind))
            },
        ),
    )


_OF_ALL: Final = ("client_delay",)
"""Latencies that requests which did not complete have too."""


def _load_stopped(found: RunCount, contract: Contract, total: ClassCount) -> bool:
    limits = contract.serving
    if not limits.drain_us:
        return False
    in_interval = (total.offered + found.num_unclassed) / limits.interval_us
    return found.num_in_drain / limits.drain_us < _GOES_ON_FRAC * in_interval


def _drain_used(found: RunCount, contract: Contract, total: ClassCount) -> int | None:
    if found.start_us is None:
        return None
    limits = contract.serving
    if total.outcomes["unfinished"]:
        return limits.drain_us
    end = found.start_us + limits.interval_us
    return min(limits.drain_us, max(0, (found.last_done_us or end) - end))


def _hourly(contract: Contract, total: ClassCount, drain_us: int | None) -> float | None:
    accepted = total.outcomes["accepted"]
    if contract.cost is None or not accepted or drain_us is None:
        return None
    hours = (contract.serving.interval_us + drain_us) / _SECOND_US / _HOUR_S
    return contract.cost.per_hour * hours / accepted


def _recorded(total: ClassCount) -> float | None:
    accepted = total.outcomes["accepted"]
    if not accepted or total.num_with_cost < total.offered:
        return None
    return total.cost / accepted


def _tool(run: RunRecord, found: RunCount, interval_us: int) -> ToolNumber | None:
    tool = found.tool
    if tool is None or tool.first_sent_us is None or tool.last_end_us is None:
        return None
    duration = (tool.last_end_us - tool.first_sent_us) / _SECOND_US
    if duration <= 0 or not interval_us:
        return None
    return ToolNumber(
        reported=run.tool_goodput,
        good=tool.good,
        per_second=tool.good / duration,
        duration_s=duration,
        wrong=tool.wrong,
        unjudged=tool.unjudged,
        outside=tool.outside,
        late_by_plan=tool.late_by_plan,
    )
