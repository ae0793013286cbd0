"""Two deployments as one HTML page: the answer, what changed head by head, what differs besides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import count, percent, times
from kvtrace.plain_text import plain
from kvtrace.report.answer.words import head_name
from kvtrace.report.before_after.differences import in_short
from kvtrace.report.html.answer import answer_parts, mark
from kvtrace.report.html.evidence import captured_parts, evidence_state, ran_parts
from kvtrace.report.html.render import rendered_page
from kvtrace.report.html.ruler import ruler_of_two

if TYPE_CHECKING:
    from kvtrace.report.answer.model import State
    from kvtrace.report.before_after.model import BeforeAfter, HeadChange
    from kvtrace.report.sections import Report

_NAME: Final = 200
_PICTURED: Final = 8
_ROW: Final = 24
_FROM, _TO = 1e-5, 1.0
_LEFT, _RIGHT = 36.0, 86.0
_TICKS: Final = (1e-4, 1e-2, 1.0)


def before_after_html(told: BeforeAfter) -> str:
    """Return the page; it needs no network, and of scripts only the one that copies commands."""
    answer = told.answer
    sides = (("Before", told.before), ("After", told.after))
    return rendered_page(
        "before_after.html.j2",
        names=" → ".join(", ".join(plain(one.name, _NAME) for one in side.sources) for _, side in sides),
        subtitle="before and after",
        navigation=_navigation(told),
        links={"scales": "before-and-after"},
        answer=answer_parts(answer, ruler_of_two(told)),
        finding=_finding(told),
        sides=[
            {
                "name": one.candidate,
                "mark": mark(one.state),
                "text": plain(one.text, _NAME),
                "command": None if one.command is None else plain(one.command, 20_000),
            }
            for one in answer.compared
        ],
        picture=_picture(told.heads[:_PICTURED]),
        heads=[_row(one) for one in told.heads],
        differs=[
            [plain(value, _NAME) for value in (one.what, in_short(one.before), in_short(one.after))]
            for one in told.differs
        ],
        same=", ".join(plain(one, _NAME) for one in told.same),
        evidence=[{"name": name, **_evidence(side)} for name, side in sides],
        not_visible=", ".join(told.after.not_visible),
        version=told.kvtrace_version,
    )


def _navigation(told: BeforeAfter) -> list[tuple[str, list[dict[str, Any]]]]:
    answer = told.answer

    def entry(name: str, title: str, state: Any) -> dict[str, Any]:
        return {"id": name, "title": title, "mark": mark(state), "needs_js": False}

    return [
        ("", [entry("answer", "Answer", answer.state)]),
        (answer.questions[0].question, [entry("before-and-after", "Before and after", answer.state)]),
        (
            "What it rests on",
            [
                entry("evidence", "Evidence", _evidence_state(told)),
                entry("not-measured", "Not measured", "not measured"),
            ],
        ),
    ]


def _evidence_state(told: BeforeAfter) -> State:
    """Return what the thinner evidence of the two is."""
    found = {evidence_state(side) for side in (told.before, told.after)}
    order: tuple[State, ...] = ("warning", "too few", "sound")
    return next(one for one in order if one in found)


def _finding(told: BeforeAfter) -> str:
    if not told.heads:
        return "No head loses more or less to clipping than before"
    worse = f"{count(told.num_worse, 'head')} {'loses' if told.num_worse == 1 else 'lose'} more to clipping"
    return f"{worse} than before, {told.num_better:,} less"


def _picture(heads: tuple[HeadChange, ...]) -> dict[str, Any] | None:
    """Return the dumbbells: a row for each head, on one logarithmic axis; 0 stands at its left end."""
    if not heads:
        return None
    rows = [
        {
            "y": 14 + _ROW * place,
            "name": head_name((one.layer, one.kv_head, one.tensor)),
            "before": _across(one.clip_error_before),
            "after": _across(one.clip_error_after),
            "is_worse": one.clip_error_after > one.clip_error_before,
            "label": _across(max(one.clip_error_before, one.clip_error_after)) + 2.5,
            "text": percent(one.clip_error_after),
        }
        for place, one in enumerate(heads)
    ]
    said = "; ".join(
        f"{row['name']}: {percent(one.clip_error_before)} before, {percent(one.clip_error_after)} after"
        for row, one in zip(rows, heads, strict=True)
    )
    return {
        "rows": rows,
        "floor": 14 + _ROW * len(heads) - 8,
        "ticks": [{"x": _LEFT, "text": "0"}, *({"x": _across(at), "text": percent(at)} for at in _TICKS)],
        "said": f"Energy lost to clipping. {said}",
    }


def _across(share: float) -> float:
    inside = min(max(share, _FROM), _TO)
    part = math.log(inside / _FROM) / math.log(_TO / _FROM)
    return round(_LEFT + (_RIGHT - _LEFT) * part, 2)


def _row(one: HeadChange) -> list[str]:
    return [
        head_name((one.layer, one.kv_head, one.tensor)),
        percent(one.clip_error_before),
        percent(one.clip_error_after),
        times(one.range_used_before),
        times(one.range_used_after),
        times(one.covered_ratio),
    ]


def _evidence(report: Report) -> dict[str, Any]:
    return {"ran": list(ran_parts(report)), "captured": [captured_parts(one) for one in report.captured]}
