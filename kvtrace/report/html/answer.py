"""The first screen: the fields of the answer as they are, and the ruler of range used as numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import times
from kvtrace.plain_text import plain
from kvtrace.report.answer.model import SIGNS
from kvtrace.report.answer.words import head_name
from kvtrace.report.wording import ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.report.answer.model import Answer, RangeUsed, State

_LONGEST: Final = 2_000
_COMMAND: Final = 20_000
_LEVELS: Final[dict[State, str]] = {
    "fault": "fault",
    "warning": "warn",
    "sound": "sound",
    "too few": "none",
    "not measured": "none",
}
_RULER_FROM, _RULER_TO = 1 / 8, 4.0
_TICKS: Final = ((1 / 8, "⅛ ×"), (1 / 4, "¼ ×"), (1 / 2, "½ ×"), (1.0, "1 ×"), (2.0, "2 ×"), (4.0, "4 ×"))
_LANES: Final = {"k": 28, "v": 50}


def answer_parts(answer: Answer) -> dict[str, Any]:
    """Return the template's `answer`; every text is plain."""
    action = answer.action
    return {
        "mark": mark(answer.state),
        "kind": answer.kind,
        "headline": plain(answer.headline, _LONGEST),
        "where": _sentence(answer.where),
        "matters": _sentence(answer.matters),
        "action": {
            "text": plain(action.text, _LONGEST),
            "command": None if action.command is None else plain(action.command, _COMMAND),
            "until": None if action.until is None else plain(action.until, _LONGEST),
        },
        "sure": {"level": answer.sure.level, "text": ended(plain(answer.sure.text, _LONGEST))},
        "questions": {
            one.id: {
                "question": one.question,
                "answer": plain(one.answer, _LONGEST),
                "because": plain(one.because, _LONGEST),
            }
            for one in answer.questions
        },
        "ruler": _ruler(answer) if answer.ruler else None,
        "not_measured": [
            {"what": one.what, "why": one.why, "command": one.command} for one in answer.not_measured
        ],
    }


def mark(state: State) -> dict[str, str]:
    """Return a state as sign and word, and the style that colours it."""
    return {"sign": SIGNS[state], "word": state, "level": _LEVELS[state]}


def upper_first(text: str) -> str:
    """Return a text that may start a line.

    >>> upper_first("layer 1 head 2 K")
    'Layer 1 head 2 K'
    """
    return text[:1].upper() + text[1:]


def _sentence(parts: Sequence[str]) -> str:
    return upper_first(ended("; ".join(plain(one, _LONGEST) for one in parts))) if parts else ""


def _ruler(answer: Answer) -> dict[str, Any]:
    """Return places in per cent of the width and in pixels down; the scales of the answer are named."""
    own = [one for one in answer.ruler if one.candidate == answer.candidate]
    others = [one for one in answer.ruler if one.candidate != answer.candidate]
    edge = (own or answer.ruler)[0]
    return {
        "edge": _across(edge.clips_from),
        "ticks": [{"x": _across(at), "text": text} for at, text in _TICKS],
        "others": [{"x": _across(one.ratio), "y": _LANES[one.tensor]} for one in others],
        "marks": [_named(one, answer.state) for one in own],
        "said": "Range used: " + "; ".join(_words(one) for one in own),
    }


def _named(one: RangeUsed, state: State) -> dict[str, Any]:
    x = _across(one.ratio)
    clips = one.ratio > one.clips_from
    return {
        "x": x,
        "y": _LANES[one.tensor],
        "clips": clips,
        "level": _LEVELS[state] if clips else "sound",
        "text": _words(one),
        "is_left": x > 45,
    }


def _words(one: RangeUsed) -> str:
    head = (one.layer, one.kv_head, one.tensor)
    return f"{one.tensor.upper()} {times(one.ratio)}, {head_name(head)}"


def _across(ratio: float) -> float:
    """Return how far along the ruler, in per cent of its width; beyond its ends the nearer one."""
    inside = min(max(ratio, _RULER_FROM), _RULER_TO)
    share = math.log(inside / _RULER_FROM) / math.log(_RULER_TO / _RULER_FROM)
    return round(1 + 98 * share, 2)
