"""The report for people: plain text on 80 columns, the answer first. No colour is needed to read it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.report.answer import (
    candidate_answer,
    candidate_statement,
    captured_amount,
    effect_statement,
    rounding_floors,
    sampling_rules,
)
from kvtrace.report.terminal.tables import candidate_table, captured_table, head_table, stratum_table
from kvtrace.report.terminal.verdict import finding_lines, heat_map_lines, verdict_lines
from kvtrace.report.wording import columns, cut, minute, padded, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.report.sections import CandidateSummary, Report, Source

_LONGEST_NAME: Final = 20
_MOST_DETAILED: Final = 1
"""Candidates whose heads and places are listed, the verdict's first; the tables before them have all."""


def report_text(report: Report) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield from _title(report)
    yield from ("", "VERDICT")
    yield from verdict_lines(report)
    yield from ("", "WHAT RAN")
    yield from _named((source.name, _what_ran(report, source)) for source in report.sources)
    yield from ("", "WHICH HEADS LEAVE THE RANGE")
    yield from _named((one.candidate, candidate_answer(report, one)) for one in report.candidates)
    yield from heat_map_lines(report)
    yield from ("", "WHAT WAS FOUND   ranked; the SQL of each is in --format json")
    yield from finding_lines(report)
    yield from ("", "WHAT IS COMPARED")
    yield from _named((one.candidate, candidate_statement(report, one)) for one in report.candidates)
    yield from ("", "CANDIDATES SIDE BY SIDE   shares of values; SQNR in dB, higher is better")
    yield from candidate_table(report.candidates)
    yield from _reading_help(report)
    yield from _details(report)
    yield from ("", "WHAT WAS CAPTURED")
    for sentence in sampling_rules(report, 24):
        yield from paragraph(sentence)
    yield from captured_table(report.captured)
    yield from ("", "NOT VISIBLE HERE")
    yield from paragraph(
        f"This replays captured K and V. It cannot show {', '.join(report.not_visible)}. Shares are of "
        "captured tokens, which come in requests: a few requests say little, however many tokens they have."
    )
    yield from ("", "ASK FURTHER")
    yield from _next_steps(report)


def _title(report: Report) -> Iterator[str]:
    names = ", ".join(plain(source.name, 24) for source in report.sources)
    models = ", ".join(sorted({plain(source.model, 30) for source in report.sources}))
    yield from paragraph(f"kvtrace report · {names} · {models} · {captured_amount(report)}", "  ", "")


def _named(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each text beside its name; the texts of one section are aligned."""
    listed = list(entries)
    width = max((columns(cut(name, _LONGEST_NAME)) for name, _ in listed), default=0)
    for name, text in listed:
        yield from paragraph(text, " " * (width + 4), f"  {padded(name, width)}  ")


def _what_ran(report: Report, source: Source) -> str:
    captured = minute(source.captured_at)
    backends = (
        ", ".join(plain(backend, 20) for backend in source.attention_backends) or "backend not recorded"
    )
    scales = [one for one in report.loaded if one.source == source.name]
    text = (
        f"{plain(source.engine, 20)} {plain(source.engine_version, 20)} on {plain(source.device, 40)} "
        f"({backends}), captured {captured}; {effect_statement(source, scales)}"
    )
    return text if source.closed else text + " NOT closed in order: its last rows may be missing."


def _reading_help(report: Report) -> Iterator[str]:
    yield from paragraph(
        "out of range: |x| > MAX × scale. clipped: beyond the point where rounding leaves MAX, so more is "
        "lost than rounding loses; a value out of range but not clipped becomes MAX and does no harm (a "
        "healthy absmax scale has some). flushed: not zero before, zero after."
    )
    for sentence in rounding_floors(report):
        yield from paragraph(sentence)


def _details(report: Report) -> Iterator[str]:
    """Heads and places of the candidates that clip, the verdict's first, then the worst."""
    clipping = [one for one in report.candidates if _worst_share(one) > 0]
    ranked = sorted(clipping, key=lambda one: (one.candidate != report.verdict.subject, -_worst_share(one)))
    for candidate in ranked[:_MOST_DETAILED]:
        name = cut(candidate.candidate, _LONGEST_NAME)
        yield from ("", f"HEADS OUT OF RANGE under {name}   worst first, K and V apart")
        heads = [head for head in report.heads if head.candidate == candidate.candidate]
        yield from head_table(heads, report.top)
        yield from ("", f"WHERE VALUES ARE CLIPPED under {name}   share of values")
        yield from stratum_table([x for x in report.positions if x.candidate == candidate.candidate])
        yield from stratum_table([x for x in report.workloads if x.candidate == candidate.candidate])
    if len(ranked) > _MOST_DETAILED:
        hidden = ", ".join(plain(one.candidate, 24) for one in ranked[_MOST_DETAILED:])
        yield ""
        yield from paragraph(f"Left out here, in --format json and for kvtrace query: {hidden}.")


def _worst_share(candidate: CandidateSummary) -> float:
    return max((total.worst_clipped_frac or 0 for total in candidate.tensors), default=0)


def _next_steps(report: Report) -> Iterator[str]:
    if report.run is None:
        yield from paragraph("Keep the run to ask it more: kvtrace replay TRACE --scales ARTIFACT … -o RUN")
        yield "  kvtrace query RUN rank_heads --param top=20"
    else:
        # A command must be whole to be copied, however long the path.
        yield f"  kvtrace query {shlex.quote(plain(report.run, 1000))} \\"
        yield "    rank_heads --param top=20"
    yield "  kvtrace query --list"
