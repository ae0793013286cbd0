"""Two deployments for an incident document: Markdown of at most 40 lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent, times
from kvtrace.report.answer.words import head_name
from kvtrace.report.before_after.differences import in_short
from kvtrace.report.markdown import (
    MAX_LINES,
    answer_markdown,
    escaped,
    evidence_markdown,
    not_measured_markdown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.before_after.model import BeforeAfter

_MOST_HEADS: Final = 4
_MOST_DIFFERENCES: Final = 6
_VALUE: Final = 80


def before_after_markdown(told: BeforeAfter) -> str:
    """Return the answer, the heads that changed, what differs besides, and what both rest on."""
    lines = list(_lines(told))
    assert len(lines) <= MAX_LINES, "every part has a limit of its own"
    return "\n".join(lines) + "\n"


def _lines(told: BeforeAfter) -> Iterator[str]:
    yield from answer_markdown(told.answer)
    if told.heads:
        yield ""
        yield "| head | lost to clipping before | after | range used before | after |"
        yield "|---|--:|--:|--:|--:|"
        for one in told.heads[:_MOST_HEADS]:
            name = head_name((one.layer, one.kv_head, one.tensor))
            cells = (percent(one.clip_error_before), percent(one.clip_error_after))
            used = (times(one.range_used_before), times(one.range_used_after))
            yield f"| {' | '.join((name, *cells, *used))} |"
    if told.differs:
        yield ""
        yield "| differs | before | after |"
        yield "|---|---|---|"
        for fact in told.differs[:_MOST_DIFFERENCES]:
            values = (escaped(in_short(value), _VALUE) for value in (fact.before, fact.after))
            yield f"| {' | '.join((escaped(fact.what, _VALUE), *values))} |"
        if len(told.differs) > _MOST_DIFFERENCES:
            yield f"| {len(told.differs) - _MOST_DIFFERENCES} more in `--format json` | | |"
    yield ""
    for name, report in (("Before", told.before), ("After", told.after)):
        yield f"{name}: {evidence_markdown(report)}"
        yield ""
    yield not_measured_markdown(told.after)
