"""What was found, ranked, as the evidence of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.report.terminal.commands import command_lines
from kvtrace.report.wording import cut, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.finding import Finding
    from kvtrace.report.sections import Report

_NAME: Final = 24
_MESSAGE: Final = 2_000
_MOST_FOUND: Final = 12
_WORDS: Final = {"error": "fault", "warning": "warning", "note": "note"}


def finding_lines(report: Report) -> Iterator[str]:
    """Yield every finding above a note, the notes that say what was excluded, and the ids of the others."""
    told = [one for one in report.findings if one.severity != "note" or one.id == "coverage"]
    if report.answer.state == "sound":
        told += [one for one in report.findings if one.id in ("not-the-scales", "rounding-floor")]
    commands = {report.answer.action.command or ""}
    for one in told[:_MOST_FOUND]:
        yield from _finding(one, commands)
    if len(told) > _MOST_FOUND:
        yield f"  and {len(told) - _MOST_FOUND} more: --format json has all"
    rest = [one for one in report.findings if one not in told]
    if rest:
        yield from paragraph(f"noted: {_by_id(rest)}")


def _finding(one: Finding, commands: set[str]) -> Iterator[str]:
    """Yield one finding; a command that was printed before is not repeated."""
    about = f" under {cut(one.candidate, _NAME)}" if one.candidate else ""
    sure = "" if one.confidence == "certain" else f", confidence {one.confidence}"
    rests = f", from {one.num_requests:,} requests" if one.num_requests is not None else ""
    cause = f", explained by {', '.join(one.explained_by)}" if one.explained_by else ""
    yield from paragraph(f"{one.id}{about}{sure}{rests}{cause}", " " * 10, f"  {_WORDS[one.severity]:<8}")
    yield from paragraph(plain(one.message, _MESSAGE), " " * 10)
    yield from paragraph(plain(one.action, _MESSAGE), " " * 12, " " * 10 + "→ ")
    if one.command and one.command in commands:
        yield " " * 12 + "the same command as above"
    else:
        yield from command_lines(one.command, " " * 12)
    commands.add(one.command or "")


def _by_id(findings: Sequence[Finding]) -> str:
    """Return "k-clips (shipped); coverage": each id with the scales it is about."""
    listed = []
    for name in dict.fromkeys(one.id for one in findings):
        about = dict.fromkeys(cut(o.candidate, _NAME) for o in findings if o.id == name and o.candidate)
        listed.append(f"{name} ({', '.join(about)})" if about else name)
    return "; ".join(listed)
