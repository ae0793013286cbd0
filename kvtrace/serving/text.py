"""Useful goodput for people: plain text on 80 columns."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final, TypeVar

from kvtrace.figures import count, number, percent
from kvtrace.plain_text import plain, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.serving.percentiles import Percentile
    from kvtrace.serving.report import (
        ClassGoodput,
        EngineSpan,
        EnvelopePoint,
        Gain,
        GoodputReport,
        RunGoodput,
        ToolNumber,
        VariantGoodput,
        VariantPair,
    )
    from kvtrace.serving.spread import Spread

_Shown = TypeVar("_Shown")
_NOT_MEASURED: Final = "not measured"
LATENCIES: Final = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "between tokens",
    "e2e": "to the end",
    "client_delay": "sent after plan",
    "engine_queue": "engine queue",
    "engine_ttft": "engine TTFT",
}


def goodput_text(report: GoodputReport) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: GoodputReport) -> Iterator[str]:
    names = " · ".join(plain(PurePath(table).name) for table in report.tables)
    yield from wrapped(f"kvtrace goodput · {names}", "")
    yield from wrapped(
        f"policy {plain(report.policy_name)} of {report.policy_date}: accepted a second of "
        f"{report.interval_s:g} s, {report.drain_s:g} s to end in",
        "",
    )
    for run in report.runs:
        yield ""
        yield from _run(run, report.currency)
    for variant in report.variants:
        yield ""
        yield from _variant(variant, report.gpus)
    for pair in report.pairs:
        yield ""
        yield from _pair(pair)
    if len(report.envelope) > 1 or any(point.reaches is not None for point in report.envelope):
        yield ""
        yield "OPERATING ENVELOPE   offered a second, accepted a second, low end of the share"
        for point in report.envelope:
            yield from wrapped(_point(point), "  ", "    ")


def _run(run: RunGoodput, currency: str | None) -> Iterator[str]:
    rate = "" if run.rate is None else f", {run.rate:g} a second"
    yield from wrapped(
        f"{plain(run.variant)} run {run.repetition}: {run.format}, {run.load} load{rate}", "", "  "
    )
    for problem in run.problems:
        yield from wrapped(f"no goodput: {plain(problem.text, 400)}", "  ", "    ")
    for note in run.notes:
        yield from wrapped(f"note: {plain(note.text, 400)}", "  ", "    ")
    if run.all.offered or run.latency_clock == "planned":
        for one in _shown(run.classes, run.all):
            yield from _class(one)
    else:
        yield "  latencies from sending, since no arrival is known"
    for one in run.classes:
        yield from _latencies(one)
    left_out = [
        (run.num_before, "before the interval"),
        (run.num_after, "after it"),
        (run.num_engine_warmup, "engine warm-up"),
        (run.num_prefix_warmup, "prefix warm-up"),
    ]
    if any(many for many, _ in left_out):
        yield from wrapped(
            f"not counted: {', '.join(f'{many:,} {what}' for many, what in left_out if many)}", "  ", "    "
        )
    if run.cost_per_accepted is not None:
        yield f"  {number(run.cost_per_accepted)} {plain(currency or '', 8)} an accepted answer, by the hour"
    if run.recorded_cost_per_accepted is not None:
        yield (
            f"  {number(run.recorded_cost_per_accepted)} {plain(currency or '', 8)} an accepted answer, "
            "by the requests' own costs"
        )
    if run.tool is not None:
        yield from wrapped(tool_line(run.tool), "  ", "    ")


def _shown(classes: Sequence[_Shown], together: _Shown) -> tuple[_Shown, ...]:
    """Return what is shown: one class alone is all of them."""
    return (*classes, together) if len(classes) > 1 else tuple(classes)


def _class(one: ClassGoodput) -> Iterator[str]:
    if not one.offered:
        yield f"  {plain(one.name)}: {_NOT_MEASURED}: no request"
        return
    told = "goodput not told"
    if one.goodput is not None and one.goodput_most is not None:
        most = "" if one.goodput_most == one.goodput else f" to {number(one.goodput_most)}"
        told = f"{number(one.goodput)}{most} a second"
    kinds = ("accepted", "late", "wrong", "unjudged", "rejected", "failed", "unfinished")
    counted = ", ".join(f"{getattr(one, kind):,} {kind}" for kind in kinds if getattr(one, kind))
    yield from wrapped(f"{plain(one.name)}: {told}; of {one.offered:,} offered {counted}", "  ", "    ")


def _latencies(one: ClassGoodput) -> Iterator[str]:
    for kind, title in LATENCIES.items():
        found: tuple[Percentile, ...] = getattr(one.latencies, kind)
        told = [percentile_text(each) for each in found if each.value_ms is not None]
        if told:
            yield from wrapped(f"{plain(one.name)} {title}, ms: {', '.join(told)}", "    ", "      ")
        elif found:
            yield f"    {plain(one.name)} {title}: too few requests for a percentile"


def percentile_text(one: Percentile) -> str:
    """Return a percentile that is told, in ms, with its interval."""
    assert one.value_ms is not None
    censored = ", of all at least the deadline" if one.is_censored else ""
    if one.low_ms is None and one.high_ms is None:
        return f"p{100 * one.quantile:g} {number(one.value_ms)}{censored}"
    return (
        f"p{100 * one.quantile:g} {number(one.value_ms)} "
        f"({number(one.low_ms)} to {number(one.high_ms)}{censored})"
    )


def tool_line(tool: ToolNumber) -> str:
    """Return the tool's own number, counted anew, and what it counts besides."""
    reported = "" if tool.reported is None else f"the tool says {number(tool.reported)} good a second; "
    other = [
        (tool.wrong, "wrong"),
        (tool.unjudged, "unjudged"),
        (tool.outside, "outside the interval"),
        (tool.late_by_plan, "late by the plan"),
    ]
    counted = ", ".join(f"{many:,} {what}" for many, what in other if many)
    among = f", {counted} among them" if counted else ""
    return (
        f"{reported}counted as tools do, by these limits: {tool.good:,} good{among}, over "
        f"{number(tool.duration_s)} s to the last end: {number(tool.per_second)} a second"
    )


def _variant(variant: VariantGoodput, gpus: int | None) -> Iterator[str]:
    if variant.unsupported is not None:
        yield from wrapped(
            f"{plain(variant.variant).upper()}: unsupported: {plain(variant.unsupported, 400)}", ""
        )
        return
    rate = "" if variant.rate is None else f" at {variant.rate:g} a second"
    yield from wrapped(
        f"{plain(variant.variant).upper()}{rate}: {variant.num_used:,} of {count(variant.num_runs, 'run')} "
        "can be used",
        "",
    )
    for one in _shown(variant.classes, variant.all):
        per_gpu = (
            ""
            if gpus is None or one.goodput is None
            else f", {number(one.goodput.mean / gpus)} for each of {gpus:,} GPUs"
        )
        yield from wrapped(f"{plain(one.name)}: {_spread(one.goodput)}{per_gpu}", "  ", "    ")
    yield from _engine(variant)


def _engine(variant: VariantGoodput) -> Iterator[str]:
    restarts = variant.restarts
    if restarts is None:
        yield f"  /metrics: {_NOT_MEASURED}"
        return
    if restarts:
        yield from wrapped(
            f"the server was started anew {count(restarts, 'time')}; nothing is subtracted across a start",
            "  ",
            "    ",
        )
    when = "within the runs' intervals" if variant.is_cut else "over all scrapes"
    for one in variant.engine:
        yield from wrapped(f"whole engine, {when}, {span_line(one)}", "  ", "    ")


def span_line(one: EngineSpan) -> str:
    """Return what one life of a server reported: its cache, what grew, and peaks."""
    held = [
        (one.cache_dtype, "cache dtype {}"),
        (one.num_blocks, "{:,} blocks"),
        (one.num_tokens, "{:,} tokens"),
    ]
    said = [text.format(plain(value) if isinstance(value, str) else value) for value, text in held if value]
    said += [f"{plain(name)} +{value:,.6g}" for name, value in one.grown.items() if value]
    said += [
        f"{plain(name)} up to {percent(value) if name == 'usage' else f'{value:,.6g}'}"
        for name, value in one.peaks.items()
        if value
    ]
    return f"{count(one.num_scrapes, 'scrape')}: {', '.join(said)}"


def _pair(pair: VariantPair) -> Iterator[str]:
    rate = "" if pair.rate is None else f" at {pair.rate:g} a second"
    yield from wrapped(
        f"{plain(pair.candidate)} less {plain(pair.baseline)}{rate}: {count(pair.num_pairs, 'pair')} of runs",
        "",
    )
    for gain in _shown(pair.classes, pair.all):
        yield from wrapped(f"{plain(gain.name)}: {_gain(gain)}", "  ", "    ")
    one = pair.output_tokens
    if one is None:
        yield f"  output lengths: {_NOT_MEASURED}: no request has the same id in both"
        return
    ends = "" if one.low is None else f" ({one.low:+.3g} to {one.high:+.3g})"
    yield from wrapped(
        f"output lengths: {one.mean:+.3g} tokens{ends} over {count(one.num_requests, 'request')}",
        "  ",
        "    ",
    )


def _gain(gain: Gain) -> str:
    one = gain.difference
    if one is None:
        return _NOT_MEASURED
    ends = ", too few runs for an interval" if one.low is None else f" ({one.low:+.4g} to {one.high:+.4g})"
    of_it = (
        "" if not gain.baseline else f", {100 * one.mean / gain.baseline:+.3g} % of {number(gain.baseline)}"
    )
    return f"{one.mean:+.4g} accepted a second{ends}{of_it}"


def _spread(one: Spread | None) -> str:
    if one is None:
        return _NOT_MEASURED
    if one.low is None:
        return f"{number(one.mean)} accepted a second, {count(one.num_runs, 'run')}: too few for an interval"
    return (
        f"{number(one.mean)} accepted a second ({number(one.low)} to {number(one.high)}), median "
        f"{number(one.median)}, {number(one.least)} to {number(one.most)} in {count(one.num_runs, 'run')}"
    )


def _point(point: EnvelopePoint) -> str:
    limit = "" if point.admission_limit is None else f", at most {point.admission_limit:,} at a time"
    reaches = {None: "", True: ": reaches the contract's share", False: ": under the contract's share"}
    rate = "rate not said" if point.rate is None else f"{point.rate:g}"
    return (
        f"{plain(point.variant)}{limit}: {rate}, {number(point.goodput)}, {percent(point.accepted_frac_low)}"
        f"{reaches[point.reaches]} ({count(point.num_runs, 'run')})"
    )
