"""The answer at the head of the text report: its fields as they are, and the three questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.plain_text import plain
from kvtrace.report.answer.model import SIGNS
from kvtrace.report.terminal.commands import command_lines
from kvtrace.report.wording import ended, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.answer.model import Answer

_INDENT = " " * 12
_LONGEST = 2_000


def answer_lines(answer: Answer) -> Iterator[str]:
    """Yield the headline, where, what it matters, what to do, how sure, and the three questions."""
    state = f"{SIGNS[answer.state]} {answer.state.upper()} · {answer.kind}"
    yield from paragraph(plain(answer.headline, _LONGEST), "  ", f"{state}   ")
    yield from _field("where", list(answer.where))
    yield from _field("matters", list(answer.matters))
    yield from _action(answer)
    yield from _field("how sure", [f"{answer.sure.level}: {answer.sure.text}"])
    yield ""
    for one in answer.questions:
        yield from paragraph(
            plain(f"{one.answer}: {one.because}", _LONGEST), " " * 23, f"  {one.question.lower():<21}"
        )


def _action(answer: Answer) -> Iterator[str]:
    action = answer.action
    lines = list(paragraph(plain(action.text, _LONGEST), _INDENT)) if action.text else []
    lines += command_lines(action.command, _INDENT)
    if action.until:
        lines += paragraph(f"until that is served, serve {plain(action.until, _LONGEST)}", _INDENT)
    if lines:
        yield f"  {'do now':<10}{lines[0].lstrip()}"
        yield from lines[1:]


def _field(name: str, sentences: list[str]) -> Iterator[str]:
    if sentences:
        text = ended("; ".join(plain(one, _LONGEST) for one in sentences))
        yield from paragraph(text, _INDENT, f"  {name:<10}")
