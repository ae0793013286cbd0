"""The report for people: plain text on 80 columns, the answer first. No colour is needed to read it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.report.answer.model import SIGNS
from kvtrace.report.harm.words import MEASURED_IN
from kvtrace.report.shown import left_out, shown_candidates, shown_choices
from kvtrace.report.statements import (
    cache_bytes_statement,
    candidate_statement,
    captured_amount,
    effect_statement,
    ended_statement,
    rounding_floors,
    sampling_rules,
)
from kvtrace.report.terminal.answer import answer_lines
from kvtrace.report.terminal.commands import command_lines
from kvtrace.report.terminal.findings import finding_lines
from kvtrace.report.terminal.harm import front_table, harm_lines
from kvtrace.report.terminal.heat_map import heat_map_lines
from kvtrace.report.terminal.range_used import range_used_lines
from kvtrace.report.terminal.tables import candidate_table, captured_table, head_table, stratum_table
from kvtrace.report.wording import columns, cut, minute, padded, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.report.sections import CandidateSummary, Report, Source

_LONGEST_NAME: Final = 20


SECTIONS: Final = ("answer", "harm", "range", "heads", "formats", "evidence", "not-measured")
"""Names of the sections, in their order."""


def report_text(report: Report, *, section: str | None = None) -> str:
    """Return the report as text. section: one of SECTIONS, which is then all; None: all of them."""
    printed = {
        "answer": _answer,
        "harm": _harm,
        "range": _range,
        "heads": _heads,
        "formats": _formats,
        "evidence": _evidence,
        "not-measured": _not_measured,
    }
    chosen = SECTIONS if section is None else (section,)
    parts = ["\n".join(printed[name](report)) for name in chosen]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(report: Report) -> Iterator[str]:
    yield from _title(report)
    yield ""
    yield from answer_lines(report.answer)


def _harm(report: Report) -> Iterator[str]:
    if report.harm is not None:
        yield f"HARM   {MEASURED_IN[report.harm.knowledge]}"
        yield from front_table(report.harm, shown_candidates(report))
        yield from harm_lines(report.harm, report)


def _range(report: Report) -> Iterator[str]:
    if report.answer.ruler:
        yield "RANGE USED   the largest value against what the scales cover; clipped from |"
        yield from range_used_lines([one for one in report.answer.ruler if one.candidate in report.shown])


def _heads(report: Report) -> Iterator[str]:
    if report.losses:
        yield "HEADS"
        yield from heat_map_lines(report)
        yield from _details(report)


def _formats(report: Report) -> Iterator[str]:
    yield "FORMATS   shares of values; SQNR in dB, higher is better"
    yield from candidate_table(shown_candidates(report))
    if report.harm is None and (sizes := cache_bytes_statement(report)) is not None:
        yield from paragraph(sizes)
    listed = shown_choices(report)
    yield from _named((one.candidate, f"{SIGNS[one.state]} {plain(one.text, 400)}") for one in listed)
    if more := left_out(report):
        yield from paragraph(more)
    yield from _commands(report)
    yield from _reading_help(report)


def _commands(report: Report) -> Iterator[str]:
    """Yield the command of each choice; scales with the same one stand together."""
    by_command: dict[str, list[str]] = {}
    for one in shown_choices(report):
        if one.command:
            by_command.setdefault(one.command, []).append(cut(one.candidate, _LONGEST_NAME))
    for command, names in by_command.items():
        yield from paragraph(f"{', '.join(names)}:")
        yield from command_lines(command, "    ")


def _evidence(report: Report) -> Iterator[str]:
    yield "EVIDENCE"
    yield from _named((source.name, _what_ran(report, source)) for source in report.sources)
    yield from _named((one.candidate, candidate_statement(report, one)) for one in shown_candidates(report))
    for sentence in sampling_rules(report, 24):
        yield from paragraph(f"sampled: {sentence}")
    yield from captured_table(report.captured)
    yield from ("", "  found, ranked; the SQL of each is in --format json")
    yield from finding_lines(report)
    yield ""
    yield from _next_steps(report)


def _not_measured(report: Report) -> Iterator[str]:
    yield "NOT MEASURED"
    yield from _named((one.what, one.why) for one in report.answer.not_measured)
    for one in report.answer.not_measured:
        if one.command:
            yield from paragraph(f"{one.what}:")
            yield from command_lines(one.command, "    ")
    yield from paragraph(f"No replay shows {', '.join(report.not_visible)}.")


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
    return text + ended_statement(source)


def _reading_help(report: Report) -> Iterator[str]:
    yield from paragraph(
        "out of range: |x| > MAX × scale. clipped: beyond the point where rounding leaves MAX, so more is "
        "lost than rounding loses. A value out of range but not clipped becomes MAX and does no harm; a "
        "healthy absmax scale has some. flushed: not zero before, zero after."
    )
    for sentence in rounding_floors(report):
        yield from paragraph(sentence)


def _details(report: Report) -> Iterator[str]:
    """Yield the heads and places that clip under the scales of the answer."""
    found = [one for one in report.candidates if one.candidate == report.answer.candidate]
    if not found or not _largest_share(found[0]):
        return
    name = cut(found[0].candidate, _LONGEST_NAME)
    yield ""
    yield from paragraph(f"out of range under {name}, most first, K and V apart")
    yield from head_table([head for head in report.heads if head.candidate == found[0].candidate], report.top)
    yield ""
    yield from paragraph(f"where values are clipped under {name}, share of values")
    for strata in (report.positions, report.workloads):
        yield from stratum_table([one for one in strata if one.candidate == found[0].candidate])


def _largest_share(candidate: CandidateSummary) -> float:
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
