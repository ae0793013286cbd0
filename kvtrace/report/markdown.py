"""The report for an incident document: Markdown of at most 40 lines, names from outside as plain text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, decibel, percent
from kvtrace.plain_text import plain
from kvtrace.report.statements import decisive_finding, hypothetical_statement
from kvtrace.report.wording import ended
from kvtrace.trace.cache_dtypes import quantized_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.finding import Finding
    from kvtrace.report.sections import Report

MAX_LINES: Final = 40
_MOST_FOUND: Final = 6
_MOST_CANDIDATES: Final = 6
_NAME: Final = 40
_MESSAGE: Final = 1_000
_SPECIAL: Final = "\\`*_[]#|~$"
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def report_markdown(report: Report) -> str:
    """Return the verdict, the findings, the candidates and the coverage."""
    lines = list(_lines(report))
    assert len(lines) <= MAX_LINES, "every part has a limit of its own"
    return "\n".join(lines) + "\n"


def _lines(report: Report) -> Iterator[str]:
    told = [one for one in report.findings if one.severity != "note"]
    notes = [one for one in report.findings if one.severity == "note"]
    first = decisive_finding(report)
    yield f"## FP8 KV-cache scales: {report.verdict.status}"
    yield ""
    hypothetical = hypothetical_statement(report, first) if first is not None else ""
    yield f"{ended(_text(report.verdict.headline, _MESSAGE))} {_text(hypothetical, _MESSAGE)}".rstrip()
    yield ""
    if first is not None:
        yield f"**Do:** {ended(_text(first.action, _MESSAGE))}"
        yield ""
        if first.command is not None:
            yield from ("```sh", plain(first.command, 4_000).replace("```", "` ` `"), "```", "")
    yield from _sources(report)
    yield ""
    if told:
        yield "| severity | finding | scales | confidence | requests |"
        yield "|---|---|---|---|---|"
        yield from (_row(one) for one in told[:_MOST_FOUND])
        if len(told) > _MOST_FOUND:
            yield f"| | {len(told) - _MOST_FOUND} more in `--format json` | | | |"
        yield ""
    yield from _candidates(report)
    yield ""
    coverage = next((one for one in notes if one.id == "coverage"), None)
    if coverage is not None:
        yield f"Coverage: {_text(coverage.message, _MESSAGE)}."
    yield (
        f"Shares of vectors are estimates for the traffic from {_requests(report)}; sums of error are of the "
        f"captured values. Not visible in a replay: {', '.join(report.not_visible)}."
    )
    if first is not None:
        yield ""
        yield "Evidence:"
        yield "```sql"
        yield plain(" ".join(first.sql.split()), 2_000).replace("```", "` ` `")
        yield "```"


def _sources(report: Report) -> Iterator[str]:
    named = []
    for source in report.sources[:3]:
        captured = datetime.fromtimestamp(source.captured_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
        effect = {
            "static_fp8": "FP8 in effect",
            "unquantized": "no FP8 in effect",
            "other": f"{_text(quantized_names(source.cache_dtypes), _NAME)} cache, not static FP8",
        }[source.cache_kind]
        named.append(
            f"{_text(source.name, _NAME)} ({_text(source.model, _NAME)}, {_text(source.engine, 20)} "
            f"{_text(source.engine_version, 20)}, {captured}, {effect}, trace {source.trace_sha256[:12]})"
        )
    more = f" and {len(report.sources) - 3} more" if len(report.sources) > 3 else ""
    tokens = sum(one.num_prefill_tokens + one.num_decode_tokens for one in report.captured)
    yield (
        f"Traces: {'; '.join(named)}{more}; {count(tokens, 'token')} of {_requests(report)}; kvtrace "
        f"{_text(report.kvtrace_version, 20)}"
    )


def _requests(report: Report) -> str:
    return count(sum(one.num_captured_requests for one in report.captured), "request")


def _row(one: Finding) -> str:
    scales = _text(one.candidate, _NAME) if one.candidate else "the trace"
    cause = f", explained by {', '.join(one.explained_by)}" if one.explained_by else ""
    requests = f"{one.num_requests:,}" if one.num_requests is not None else ""
    finding = f"**{one.id}**{cause}: {_text(one.message, 160)}"
    return f"| {one.severity} | {finding} | {scales} | {one.confidence} | {requests} |"


def _candidates(report: Report) -> Iterator[str]:
    yield "| scales | K clipped | V clipped | K SQNR | V SQNR |"
    yield "|---|---|---|---|---|"
    scored = [one for one in report.candidates if one.kind != "bf16"]
    for candidate in scored[:_MOST_CANDIDATES]:
        name = _text(candidate.candidate, _NAME)
        if candidate.status == "invalid":
            yield f"| {name} | invalid | {_text(candidate.reason or 'no reason recorded', 200)} | | |"
            continue
        of = {total.tensor: total.measured for total in candidate.tensors}
        clipped = [percent(of[tensor].clipped_frac) if tensor in of else "–" for tensor in ("k", "v")]
        sqnr = [decibel(of[tensor].sqnr_db) if tensor in of else "–" for tensor in ("k", "v")]
        yield f"| {' | '.join([name, *clipped, *sqnr])} |"
    if len(scored) > _MOST_CANDIDATES:
        yield f"| {len(scored) - _MOST_CANDIDATES} more in `--format json` | | | | |"


def _text(text: str, limit: int) -> str:
    r"""Return text from outside so that Markdown and HTML show it as it is.

    >>> _text("<b>|*x*", 40)
    '&lt;b&gt;\\|\\*x\\*'
    """
    return "".join(
        _ENTITIES.get(char, f"\\{char}" if char in _SPECIAL else char) for char in plain(text, limit)
    )
