"""Two deployments as text on 80 columns, the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent, times
from kvtrace.plain_text import plain
from kvtrace.report.answer.model import SIGNS
from kvtrace.report.answer.words import head_name
from kvtrace.report.before_after.differences import in_short
from kvtrace.report.statements import captured_amount, effect_statement
from kvtrace.report.terminal.answer import answer_lines
from kvtrace.report.terminal.range_used import range_used_lines
from kvtrace.report.wording import cut, minute, padded, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.before_after.model import BeforeAfter, Difference
    from kvtrace.report.sections import Report

SECTIONS: Final = ("answer", "range", "before-and-after", "evidence", "not-measured")
"""Names of the sections, in their order."""
_NAME: Final = 22
_VALUE: Final = 200
_MOST_NAMED: Final = 30


def before_after_text(told: BeforeAfter, *, section: str | None = None) -> str:
    """Return the report as text. section: one of SECTIONS, which is then all; None: all of them."""
    printed = {
        "answer": _answer,
        "range": _range,
        "before-and-after": _before_and_after,
        "evidence": _evidence,
        "not-measured": _not_measured,
    }
    chosen = SECTIONS if section is None else (section,)
    parts = ["\n".join(printed[name](told)) for name in chosen]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sides(told: BeforeAfter) -> tuple[tuple[str, Report], ...]:
    return ("before", told.before), ("after", told.after)


def _answer(told: BeforeAfter) -> Iterator[str]:
    names = (", ".join(cut(source.name, 24) for source in report.sources) for _, report in _sides(told))
    yield from paragraph(f"kvtrace report · {' → '.join(names)} · before and after", "  ", "")
    yield ""
    yield from answer_lines(told.answer)


def _range(told: BeforeAfter) -> Iterator[str]:
    if told.answer.ruler:
        yield "RANGE USED   the largest value against what the scales cover; clipped from |"
        yield from range_used_lines(told.answer.ruler)


def _before_and_after(told: BeforeAfter) -> Iterator[str]:
    yield "BEFORE AND AFTER"
    for one in told.answer.compared:
        yield from paragraph(f"{SIGNS[one.state]} {one.text}", " " * 10, f"  {one.candidate:<8}")
    if told.heads:
        yield f"  {'':<{_NAME}} lost to clipping        range used       covers"
        yield f"  {'':<{_NAME}}   before     after    before     after   as much"
        for head in told.heads:
            name = head_name((head.layer, head.kv_head, head.tensor))
            lost = f"{percent(head.clip_error_before):>9} {percent(head.clip_error_after):>9}"
            used = f"{times(head.range_used_before):>9} {times(head.range_used_after):>9}"
            yield f"  {name:<{_NAME}}{lost} {used} {times(head.covered_ratio):>9}"
        verb = "loses" if told.num_worse == 1 else "lose"
        more = told.num_worse + told.num_better - len(told.heads)
        yield from paragraph(
            f"{count(told.num_worse, 'head')} {verb} more to clipping than before, {told.num_better:,} less"
            + (f"; {more:,} of them are not listed" if more else "")
        )
    yield "  differs"
    for fact in told.differs:
        yield from _difference(fact)
    if not told.differs:
        yield "    nothing that was recorded"
    if told.same:
        yield from paragraph(f"the same: {', '.join(plain(name, 60) for name in told.same[:_MOST_NAMED])}")


def _difference(fact: Difference) -> Iterator[str]:
    before, after = (plain(in_short(value), _VALUE) for value in (fact.before, fact.after))
    yield from paragraph(f"{before} → {after}", " " * (_NAME + 5), f"    {padded(fact.what, _NAME)} ")


def _evidence(told: BeforeAfter) -> Iterator[str]:
    yield "EVIDENCE"
    for name, report in _sides(told):
        yield from paragraph(f"{captured_amount(report)}", " " * 10, f"  {name:<8}")
        for source in report.sources:
            scales = [one for one in report.loaded if one.source == source.name]
            yield from paragraph(
                f"{plain(source.name, 40)}: {plain(source.engine, 20)} {plain(source.engine_version, 20)} on "
                f"{plain(source.device, 40)}, captured {minute(source.captured_at)}; "
                f"{effect_statement(source, scales)}",
                " " * 10,
            )


def _not_measured(told: BeforeAfter) -> Iterator[str]:
    yield "NOT MEASURED"
    width = max(len(one.what) for one in told.answer.not_measured)
    for one in told.answer.not_measured:
        yield from paragraph(one.why, " " * (width + 4), f"  {padded(one.what, width)}  ")
    yield from paragraph(f"No replay shows {', '.join(told.after.not_visible)}.")
