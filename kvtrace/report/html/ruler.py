"""The ruler of range used: places in per cent of the width and in pixels down."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import times
from kvtrace.report.answer.words import head_name
from kvtrace.report.html.answer import LEVELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.report.answer.model import Answer, RangeUsed, State
    from kvtrace.report.before_after.model import BeforeAfter

_FROM: Final = 1 / 8
_TO: Final = 4.0
_TICKS: Final = ((1 / 8, "⅛ ×"), (1 / 4, "¼ ×"), (1 / 2, "½ ×"), (1.0, "1 ×"), (2.0, "2 ×"), (4.0, "4 ×"))
_FIRST: Final = 28
_APART: Final = 22
_LANES: Final = {"k": _FIRST, "v": _FIRST + _APART}


def ruler_of(answer: Answer, shown: Sequence[str]) -> dict[str, Any] | None:
    """Return the template's `answer.ruler`: the scales of the answer by name, others shown as thin marks."""
    if not answer.ruler:
        return None
    own = [one for one in answer.ruler if one.candidate == answer.candidate]
    others = [one for one in answer.ruler if one.candidate != answer.candidate and one.candidate in shown]
    marks = [(one, answer.state, _used(one), _LANES[one.tensor]) for one in own]
    return _ruler(marks, others)


def ruler_of_two(told: BeforeAfter) -> dict[str, Any] | None:
    """Return the same of two deployments, all named."""
    if not told.answer.ruler:
        return None
    states = {one.candidate: one.state for one in told.answer.compared}
    marks = [
        (one, states[one.candidate], f"{one.candidate}: {_used(one)}", _FIRST + _APART * place)
        for place, one in enumerate(told.answer.ruler)
    ]
    return _ruler(marks, [])


def _ruler(marks: Sequence[tuple[RangeUsed, State, str, int]], others: Sequence[RangeUsed]) -> dict[str, Any]:
    edge = marks[0][0] if marks else others[0]
    named = [_named(*mark) for mark in marks]
    return {
        "edge": _across(edge.clips_from),
        "floor": max([y for *_, y in marks] + [_LANES["v"]]) + 16,
        "ticks": [{"x": _across(at), "text": text} for at, text in _TICKS],
        "others": [{"x": _across(one.ratio), "y": _LANES[one.tensor]} for one in others],
        "marks": named,
        "said": "Range used: " + "; ".join(f"{one['text']}, {one['head']}" for one in named),
    }


def _named(one: RangeUsed, state: State, words: str, y: int) -> dict[str, Any]:
    x = _across(one.ratio)
    clips = one.ratio > one.clips_from
    return {
        "x": x,
        "y": y,
        "clips": clips,
        "level": LEVELS[state] if clips else "sound",
        "text": words,
        "head": head_name((one.layer, one.kv_head, one.tensor)),
        "is_left": x > 45,
    }


def _used(one: RangeUsed) -> str:
    return f"{one.tensor.upper()} {times(one.ratio)}"


def _across(ratio: float) -> float:
    """Return how far along the ruler, in per cent of its width; beyond its ends the nearer one."""
    inside = min(max(ratio, _FROM), _TO)
    share = math.log(inside / _FROM) / math.log(_TO / _FROM)
    return round(1 + 98 * share, 2)
