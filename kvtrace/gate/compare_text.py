"""The decision table for people: plain text on 80 columns, one block a candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.gate.check_text import decibel_or_percent, head_words, wrapped
from kvtrace.gate.comparison import Decision
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.gate.comparison import Comparison, DecisionRow, Paired, PairedSegment, TensorEvidence
    from kvtrace.gate.outcome import HeadOutcome, SegmentOutcome

_CLIPPED: Final = "vectors_clipped_frac"
_MOST_SHOWN: Final = 3
"""Regressions per row and tensor; the JSON has up to ten."""


def comparison_text(comparison: Comparison) -> str:
    """Return the decision table as text."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield from wrapped(f"kvtrace compare · {' · '.join(plain(run) for run in comparison.runs)}", first="")
    policy = comparison.policy
    if policy is None:
        yield from wrapped("no policy: evidence without a decision (--policy policy.toml decides)")
    else:
        yield from wrapped(f"policy {plain(policy.name)} of {policy.date}, sha256 {policy.sha256[:16]}…")
        if policy.written_after_run:
            yield from wrapped("note: the policy is dated after the run; limits belong before the results")
    if comparison.baseline is not None:
        yield from wrapped(f"every row is compared with {plain(comparison.baseline)} (--baseline)")
    for repeated in comparison.same_rows:
        yield from wrapped(f"left out as a repetition: {repeated}")
    yield from ("", "DECISIONS")
    for row in comparison.rows:
        yield from _decision(row)
    yield from ("", "HELD CONSTANT")
    for field, value in comparison.held_constant.items():
        yield from wrapped(
            f"{field}: {'not recorded' if value is None else plain(value, 90)}", "      ", "  "
        )
    for field, values in comparison.allowed_different.items():
        shown = " | ".join("not recorded" if value is None else plain(value) for value in values)
        yield from wrapped(f"ALLOWED TO DIFFER: {field}: {shown}", "      ", "  ")
    yield from ("", "EVIDENCE   shares of vectors with a clipped value; K and V apart")
    for row in comparison.rows:
        if row.decision is not Decision.invalid:
            yield from _evidence(row)
    yield ""
    yield from wrapped(
        f"{100 * comparison.confidence:g} % intervals by request: {comparison.interval_method}; of values "
        f"clipped, error and SQNR: {comparison.ratio_interval_method}.",
        first="",
    )


def _decision(row: DecisionRow) -> Iterator[str]:
    yield from wrapped(f"{row.role.value}: {plain(row.name)}: {row.decision.value.upper()}", "    ", "  ")
    if row.segments:
        for segment in row.segments:
            yield from _segment(segment)
    elif row.reason:
        yield from wrapped(plain(row.reason, 400), "      ")


def _segment(segment: SegmentOutcome) -> Iterator[str]:
    """Yield the verdict, and the limit and head that decide it."""
    deciding = next((one for one in segment.limits if one.verdict is segment.verdict), None)
    worst = (
        f": {deciding.limit}, most in {head_words(deciding.limit, deciding.worst)}"
        if (deciding and deciding.worst and segment.num_requests)
        else ""
    )
    yield from wrapped(f"{segment.verdict.value}: {segment.name}{worst}", "        ", "      ")


def _evidence(row: DecisionRow) -> Iterator[str]:
    yield from wrapped(f"{plain(row.name)}: {row.setup}", "    ", "  ")
    if row.note:
        yield from wrapped(f"note: {plain(row.note, 300)}", "    ")
    if row.against:
        yield from wrapped(
            f"against {plain(row.against)}, changed {'; '.join(row.changed)}", "      ", "    "
        )
    for one in row.evidence:
        yield from _tensor(one)
    for pair in row.paired:
        yield from _pair(pair, row.against or "")
    if row.against and row.not_paired:
        yield from wrapped(f"not paired: {row.not_paired}", "      ", "    ")


def _tensor(one: TensorEvidence) -> Iterator[str]:
    if one.num_heads_quantized == 0:
        yield f"    {one.tensor.upper()}: not quantized, so nothing is clipped"
        return
    clipped = decibel_or_percent(_CLIPPED, one.vectors_clipped_frac)
    yield from wrapped(
        f"{one.tensor.upper()}: {clipped} clipped ({_ends(one.low, one.high)}), "
        f"{one.num_heads_clipped:,} of {one.num_heads:,} heads, "
        f"{one.num_affected_requests:,} of {one.num_requests:,} requests",
        "       ",
        "    ",
    )
    if one.sqnr_db is not None and one.worst_sqnr_db is not None:
        shares = ", ".join(
            f"{what} {decibel_or_percent(_CLIPPED, value)}{_interval(_CLIPPED, low, high)}"
            for what, value, low, high in (
                ("values clipped", one.clipped_frac, one.clipped_low, one.clipped_high),
                ("flushed", one.flushed_frac, None, None),
                ("error from clipping", one.clip_error_frac, one.clip_error_low, one.clip_error_high),
            )
            if value is not None
        )
        sqnr = f"{one.sqnr_db:.1f} dB{_interval('sqnr_db', one.sqnr_low_db, one.sqnr_high_db)}"
        yield from wrapped(f"SQNR {sqnr}, lowest in a head {one.worst_sqnr_db:.1f} dB; {shares}", "       ")
    if one.worst is not None:
        yield from wrapped(f"most: {_head(one.worst)}", "       ")


def _pair(pair: Paired, against: str) -> Iterator[str]:
    yield from wrapped(
        f"{pair.tensor.upper()} against {plain(against)}: {_told(pair)} "
        f"({_signed(pair.difference)}, {_signed(pair.low)} to {_signed(pair.high)}; "
        f"fewer in {pair.num_lower:,}, more in {pair.num_higher:,} of {pair.num_requests:,} requests; "
        f"{pair.num_heads_better:,} heads better, {pair.num_heads_worse:,} worse)",
        "       ",
        "    ",
    )
    if pair.sqnr_change_db is not None:
        if pair.sqnr_change_low_db is None or pair.sqnr_change_high_db is None:
            told = "too few requests to tell"
        else:
            told = f"{pair.sqnr_change_low_db:+.2f} to {pair.sqnr_change_high_db:+.2f} dB"
        yield from wrapped(f"SQNR {pair.sqnr_change_db:+.2f} dB ({told}), paired", "         ", "       ")
    for segment in pair.segments:
        interval = (
            "" if segment.high - segment.low >= 2 else f", {_signed(segment.low)} to {_signed(segment.high)}"
        )
        yield from wrapped(
            f"{segment.name}: {_told(segment)} ({_signed(segment.difference)}{interval}; "
            f"{segment.num_requests:,} requests)",
            "         ",
            "       ",
        )
    for head in pair.regressions[:_MOST_SHOWN]:
        yield from wrapped(f"regression: {_head(head)} more", "         ", "       ")
    if pair.num_heads_worse > _MOST_SHOWN:
        yield f"       and {pair.num_heads_worse - _MOST_SHOWN:,} heads more"


def _told(pair: Paired | PairedSegment) -> str:
    """Return the verdict; that no vector differs among those seen is not yet that none can."""
    return "no difference seen" if pair.verdict == "equal" and pair.low < pair.high else pair.verdict


def _head(head: HeadOutcome) -> str:
    return (
        f"layer {head.layer} head {head.kv_head} {head.tensor.upper()}: "
        f"{decibel_or_percent(_CLIPPED, head.value)} ({_ends(head.low, head.high)})"
    )


def _ends(low: float | None, high: float | None) -> str:
    """Return the interval of a share of vectors."""
    end = " or more" if high is None else f" to {decibel_or_percent(_CLIPPED, high)}"
    return f"{decibel_or_percent(_CLIPPED, low or 0.0)}{end}"


def _interval(limit: str, low: float | None, high: float | None) -> str:
    """Return the interval over request groups in brackets; nothing where there is none."""
    if low is None or high is None:
        return ""
    return f" ({decibel_or_percent(limit, low)} to {decibel_or_percent(limit, high)})"


def _signed(share: float) -> str:
    return f"{100 * share:+.3g} %"
