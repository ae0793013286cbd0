"""What an answer may be at most, so that all of it stands on a first screen of 80 columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvtrace.report.markdown import MAX_LINES, report_markdown
from kvtrace.report.terminal.text import report_text
from kvtrace.report.wording import columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.sections import Report

NUMBER: Final = re.compile(r"[<>]?\d[\d,.]*")
_WIDTH: Final = 80


def beyond_limits(report: Report) -> tuple[str, ...]:
    """Return what is longer than it may be, in words with its length; empty: nothing."""
    return tuple(f"{what}: {found}, at most {most}" for what, found, most in _lengths(report) if found > most)


def _lengths(report: Report) -> Iterator[tuple[str, int, int]]:
    headline = report.answer.headline
    yield "words of the headline", len(headline.split()), 14
    yield "numbers in the headline", len(NUMBER.findall(headline)), 2
    text = report_text(report, section="answer")
    lines = text.split("is it the scales?")[0].strip().splitlines()[2:]  # without the title
    yield "lines of the answer", len(lines), 12
    yield "words of the answer", sum(len(line.split()) for line in lines), 110
    # A path or a command is not broken, or it could not be copied.
    yield "columns", max(columns(line) for line in text.splitlines() if not line.startswith("    ")), _WIDTH
    yield "lines of Markdown", len(report_markdown(report).splitlines()), MAX_LINES
