"""The three questions that people come with, answered from the data that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.report.answer.model import Question, State

if TYPE_CHECKING:
    from kvtrace.findings.finding import Finding


NOTHING_CLIPS: Final = "Nothing clips"
NOTHING_JUDGED: Final = "Nothing was judged"


def three_questions(
    state: State, headline: str, clips: str, first: Finding | None, *, is_served: bool
) -> tuple[Question, Question, Question]:
    """Return the questions in their order.

    clips: what the scales clip, in words. is_served: they ran. Without harm nothing says that it is not they.
    """
    return (
        _scales(state, headline, clips, first, is_served=is_served),
        Question(
            id="format",
            question="Which cache format?",
            answer="– not measured",
            because="harm needs queries, which the trace does not hold",
        ),
        Question(
            id="release",
            question="May it go out?",
            answer="– not decided",
            because="needs a policy and checked answers",
        ),
    )


def _scales(state: State, headline: str, clips: str, first: Finding | None, *, is_served: bool) -> Question:
    if state in ("fault", "warning") and first is not None and clips != NOTHING_JUDGED:
        is_theirs = first.remedy != "elsewhere"
        yes = "Yes" if is_served else "If served, yes"
        answer = yes if is_theirs else "– not measured"
        because = (
            _lower(headline if clips == NOTHING_CLIPS else clips)
            if is_theirs
            else "the values were so before quantization"
        )
    elif state == "sound":
        answer, because = clips, "whether rounding does harm was not measured"
    else:
        answer, because = "– not measured", "too few requests" if state == "too few" else "nothing was judged"
    return Question(id="scales", question="Is it the scales?", answer=answer, because=because)


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
