"""The report for an incident document: Markdown of at most 40 lines, names from outside as plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import decibel, percent
from kvtrace.plain_text import plain
from kvtrace.report.answer.model import SIGNS
from kvtrace.report.harm.words import harm_figure
from kvtrace.report.shown import shown_candidates, shown_choices
from kvtrace.report.statements import cache_bytes, captured_amount
from kvtrace.report.wording import ended, minute
from kvtrace.trace.cache_dtypes import quantized_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.report.answer.model import Answer
    from kvtrace.report.sections import Report

MAX_LINES: Final = 40
_MOST_CANDIDATES: Final = 6
_NAME: Final = 40
_MESSAGE: Final = 1_000
_SPECIAL: Final = "\\`*_[]#|~$"
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def report_markdown(report: Report) -> str:
    """Return the answer, the three questions, the scales compared and what it rests on."""
    lines = list(_lines(report))
    assert len(lines) <= MAX_LINES, "every part has a limit of its own"
    return "\n".join(lines) + "\n"


def _lines(report: Report) -> Iterator[str]:
    answer = report.answer
    yield from answer_markdown(answer)
    yield ""
    yield from _candidates(report)
    yield ""
    yield evidence_markdown(report)
    yield ""
    yield not_measured_markdown(report)


def answer_markdown(answer: Answer) -> Iterator[str]:
    """Yield the headline, where, what it matters, how sure, what to do, and the three questions."""
    state = f"{SIGNS[answer.state]} {answer.state.upper()} · {answer.kind}"
    yield f"## {state}: {escaped(answer.headline, _MESSAGE)}"
    yield ""
    yield from _bullet("Where", answer.where)
    yield from _bullet("Matters", answer.matters)
    yield from _bullet("How sure", (f"{answer.sure.level}: {answer.sure.text}",))
    yield ""
    yield from _action(answer)
    yield "| question | answer | because |"
    yield "|---|---|---|"
    for one in answer.questions:
        yield f"| {one.question} | {escaped(one.answer, _NAME)} | {escaped(one.because, _MESSAGE)} |"


def not_measured_markdown(report: Report) -> str:
    """Return what the report lacks, and what none can have."""
    lacking = "; ".join(
        f"{one.what}: {one.why}" + (f" (measured by {one.command})" if one.command else "")
        for one in report.answer.not_measured
    )
    return f"Not measured: {escaped(lacking, _MESSAGE)}. No replay shows {', '.join(report.not_visible)}."


def _bullet(name: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"- **{name}:** {ended(escaped('; '.join(sentences), _MESSAGE))}"


def _action(answer: Answer) -> Iterator[str]:
    action = answer.action
    said = [escaped(action.text, _MESSAGE)] if action.text else []
    if action.until:
        said.append(f"Until that is served, serve {escaped(action.until, _MESSAGE)}.")
    yield f"**Do now.** {' '.join(said)}".rstrip()
    yield ""
    if action.command is not None:
        yield from ("```sh", plain(action.command, 4_000).replace("```", "` ` `"), "```", "")


def evidence_markdown(report: Report) -> str:
    """Return what was captured, where, with which digests."""
    named = []
    for source in report.sources[:3]:
        captured = minute(source.captured_at)
        effect = {
            "static_fp8": "FP8 in effect",
            "unquantized": "no FP8 in effect",
            "other": f"{escaped(quantized_names(source.cache_dtypes), _NAME)} cache, not static FP8",
        }[source.cache_kind]
        named.append(
            f"{escaped(source.name, _NAME)} ({escaped(source.model, _NAME)}, {escaped(source.engine, 20)} "
            f"{escaped(source.engine_version, 20)}, {captured}, {effect}, trace {source.trace_sha256[:12]})"
        )
    more = f" and {len(report.sources) - 3} more" if len(report.sources) > 3 else ""
    return (
        f"Evidence: {captured_amount(report)} in {'; '.join(named)}{more}; kvtrace "
        f"{escaped(report.kvtrace_version, 20)}."
    )


def _candidates(report: Report) -> Iterator[str]:
    """Yield the scales compared, the answer's first; then what quantizes without given scales."""
    states = {one.candidate: one for one in report.answer.compared}
    known = {one.candidate: one for one in report.candidates}
    formats = [
        one.candidate
        for one in shown_candidates(report)
        if one.kind != "bf16" and one.candidate not in states
    ]
    named = [
        *(one.candidate for one in shown_choices(report)),
        *formats,
        *(name for name in states if name not in report.shown),
    ]
    harm = report.harm
    with_harm = ("harm | ", "--:|", " |") if harm else ("", "", "")
    yield f"| | scales | {with_harm[0]}K clipped | V clipped | K SQNR | V SQNR | bytes a token |"
    yield f"|---|---|{with_harm[1]}--:|--:|--:|--:|--:|"
    for name in named[:_MOST_CANDIDATES]:
        sign = SIGNS[states[name].state] if name in states else ""
        shown = f"**{escaped(name, _NAME)}**" if name == report.answer.candidate else escaped(name, _NAME)
        of = {total.tensor: total.measured for total in known[name].tensors}
        if not of:
            reason = known[name].reason or "no reason recorded"
            yield f"| {sign} | {shown} | {escaped(reason, 200)} | | | | |{with_harm[2]}"
            continue
        clipped = [percent(of[tensor].clipped_frac) if tensor in of else "–" for tensor in ("k", "v")]
        sqnr = [decibel(of[tensor].sqnr_db) if tensor in of else "–" for tensor in ("k", "v")]
        size = cache_bytes(known[name]) or "–"
        own = harm.of(name) if harm else None
        harms = [harm_figure(harm, own.harm if own else None)] if harm else []
        yield f"| {' | '.join([sign, shown, *harms, *clipped, *sqnr, size])} |"
    if len(named) > _MOST_CANDIDATES:
        yield f"| | {len(named) - _MOST_CANDIDATES} more in `--format json` | | | | | |{with_harm[2]}"


def escaped(text: str, limit: int) -> str:
    r"""Return text from outside so that Markdown and HTML show it as it is.

    >>> escaped("<b>|*x*", 40)
    '&lt;b&gt;\\|\\*x\\*'
    """
    return "".join(
        _ENTITIES.get(char, f"\\{char}" if char in _SPECIAL else char) for char in plain(text, limit)
    )
