"""A check for people: the verdict, then what decides each segment. Plain text on 80 columns."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times
from kvtrace.gate.decide import BY_ESTIMATE, BY_GROUPS
from kvtrace.gate.harm import METHOD
from kvtrace.gate.outcome import Verdict
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.gate.outcome import CheckOutcome, HarmOutcome, HeadOutcome, LimitOutcome, SegmentOutcome

WIDTH: Final = 80


def check_text(outcome: CheckOutcome) -> str:
    """Return the check as text."""
    return "\n".join(_lines(outcome)) + "\n"


def decibel_or_percent(limit: str, value: float) -> str:
    """Return a value of a limit with its unit.

    >>> decibel_or_percent("sqnr_db", 25.04), decibel_or_percent("clipped_frac", 0.0123)
    ('25.0 dB', '1.23 %')
    """
    if limit == "sqnr_db":
        return f"{value:.1f} dB" if abs(value) != float("inf") else "no error"
    return f"{100 * value:.3g} %"


def wrapped(text: str, indent: str = "  ", first: str | None = None) -> list[str]:
    """Return the text in lines of at most 80 columns."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent
    )


def _lines(outcome: CheckOutcome) -> Iterator[str]:
    policy = outcome.policy
    yield from wrapped(
        f"kvtrace check · {plain(outcome.run)} · candidate {plain(outcome.candidate)}: "
        f"{outcome.verdict.value.upper()}",
        first="",
    )
    yield from wrapped(f"policy {plain(policy.name)} of {policy.date}, sha256 {policy.sha256[:16]}…")
    if policy.written_after_run:
        yield from wrapped("note: the policy is dated after the run; limits belong before the results")
    if policy.recorded_in_run is False:
        yield from wrapped("note: the run was made with another policy; its hash differs")
    if outcome.hypothetical:
        yield from wrapped(
            "hypothetical: the captured engine did not write FP8 with these scales, in this way"
        )
    if outcome.candidate_note:
        yield from wrapped(plain(outcome.candidate_note, 300))
    yield from ("", "SEGMENTS   a head's K and its V count apart")
    for segment in outcome.segments:
        yield from _segment(segment)
    if outcome.harm:
        yield from ("", f"HARM   over all traffic with queries; {METHOD}")
        for limit in outcome.harm:
            yield from _harm(limit)
    yield from ("", "SUPPORTED ENVELOPE", *wrapped(outcome.envelope))
    yield from ("", "NOT TESTED")
    for part in outcome.not_tested:
        yield from wrapped(part, "    ", "  - ")
    yield from ("", "RECALIBRATION TRIGGERS THAT FIRED")
    for trigger in outcome.triggers or ("none",):
        yield from wrapped(trigger, "    ", "  - ")
    yield ""
    bases = {limit.basis for one in outcome.segments for limit in one.limits if limit.num_heads}
    of_values = f"; of values: {outcome.ratio_interval_method}" if BY_GROUPS in bases else ""
    estimated = (
        " A limit without an interval is never breached: its estimate is within it, or it is untold."
        if BY_ESTIMATE in bases
        else ""
    )
    yield from wrapped(
        f"{100 * outcome.confidence:g} % intervals by request: {outcome.interval_method}{of_values}. "
        f"A breach is claimed by: {outcome.multiple_testing}.{estimated}",
        first="",
    )


def _segment(segment: SegmentOutcome) -> Iterator[str]:
    yield from wrapped(f"{segment.verdict.value.upper()}: {segment.name}", "    ", "  ")
    incomplete = segment.num_incomplete_requests
    lost = f", {incomplete:,} of them not captured in full" if incomplete else ""
    yield from wrapped(f"{segment.num_requests:,} requests{lost}, {segment.num_tokens:,} tokens", "    ")
    if segment.reason:
        yield from wrapped(segment.reason, "    ")
    if segment.num_nonfinite_vectors:
        yield from wrapped(
            f"{segment.num_nonfinite_vectors:,} vectors hold NaN or inf, which always breaches", "    "
        )
    if segment.num_requests:
        for limit in segment.limits:
            yield from _limit(limit)


def _harm(limit: HarmOutcome) -> Iterator[str]:
    of_baseline = f" of {plain(limit.baseline)}" if limit.baseline else ""
    shown = times if limit.baseline else percent
    found = "not measured" if limit.value is None else shown(limit.value)
    interval = "" if limit.low is None else f", {shown(limit.low)} to {shown(limit.high)}"
    yield from wrapped(
        f"{limit.verdict.value.upper()}: {limit.limit} at most {shown(limit.bound)}{of_baseline}: {found}"
        f"{interval}",
        "    ",
        "  ",
    )
    if limit.reason:
        yield from wrapped(limit.reason, "    ")


def _limit(limit: LimitOutcome) -> Iterator[str]:
    if limit.num_heads == 0:
        yield f"    {limit.limit}: no head is quantized"
        return
    relation = "at least" if limit.is_minimum else "at most"
    bound = decibel_or_percent(limit.limit, limit.bound)
    counts = f"{limit.num_heads:,} heads"
    if limit.verdict is Verdict.breached:
        counts = f"{limit.num_breached:,} of {counts}"
    elif limit.verdict is Verdict.not_enough:
        counts = f"{limit.num_untold:,} of {counts} untold"
    if limit.has_interval and limit.num_estimated:
        how = "judged by the estimate" if limit.verdict is Verdict.within else "without an interval"
        counts += f"; {limit.num_estimated:,} {how}"
    yield from wrapped(
        f"{limit.limit} {relation} {bound}: {limit.verdict.value} ({counts})", "        ", "    "
    )
    if limit.worst:
        yield from wrapped(f"most: {head_words(limit.limit, limit.worst)}", "          ", "      ")


def head_words(limit: str, head: HeadOutcome) -> str:
    """Return a head's value with its interval and what that rests on."""
    name = f"layer {head.layer} head {head.kv_head} {head.tensor.upper()}"
    value = decibel_or_percent(limit, head.value)
    if head.low is None:
        return f"{name}: {value}, no interval"
    low = decibel_or_percent(limit, head.low)
    interval = f"at least {low}" if head.high is None else f"{low} to {decibel_or_percent(limit, head.high)}"
    if head.num_requests is None:
        return f"{name}: {value}, {interval}, over {head.num_groups:,} groups of requests"
    return f"{name}: {value}, {interval}, in {head.num_affected_requests:,} of {head.num_requests:,} requests"
