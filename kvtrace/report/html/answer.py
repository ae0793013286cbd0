"""The first screen: the fields of the answer as they are, and the ruler of range used as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.plain_text import plain
from kvtrace.report.answer.model import SIGNS
from kvtrace.report.wording import ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.report.answer.model import Answer, State

_LONGEST: Final = 2_000
_COMMAND: Final = 20_000
LEVELS: Final[dict[State, str]] = {
    "fault": "fault",
    "warning": "warn",
    "sound": "sound",
    "too few": "none",
    "not measured": "none",
}


def answer_parts(answer: Answer, ruler: dict[str, Any] | None) -> dict[str, Any]:
    """Return the template's `answer`; every text is plain. ruler: of `ruler.py`; None: nothing was judged."""
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
        "questions": [
            {
                "id": one.id,
                "question": one.question,
                "answer": plain(one.answer, _LONGEST),
                "because": plain(one.because, _LONGEST),
            }
            for one in answer.questions
        ],
        "ruler": ruler,
        "not_measured": [
            {"what": one.what, "why": one.why, "command": one.command} for one in answer.not_measured
        ],
    }


def mark(state: State) -> dict[str, str]:
    """Return a state as sign and word, and the style that colours it."""
    return {"sign": SIGNS[state], "word": state, "level": LEVELS[state]}


def upper_first(text: str) -> str:
    """Return a text that may start a line.

    >>> upper_first("layer 1 head 2 K")
    'Layer 1 head 2 K'
    """
    return text[:1].upper() + text[1:]


def _sentence(parts: Sequence[str]) -> str:
    return upper_first(ended("; ".join(plain(one, _LONGEST) for one in parts))) if parts else ""
