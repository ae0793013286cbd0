"""The three questions that people come with, answered from the data that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent
from kvtrace.plain_text import plain
from kvtrace.report.answer.model import Question
from kvtrace.report.harm.words import HARDLY, MOSTLY, drift_share, harm_figure

if TYPE_CHECKING:
    from kvtrace.report.answer.told import Told
    from kvtrace.report.harm.model import CandidateHarm, Harm


NOTHING_CLIPS: Final = "Nothing clips"
NOTHING_JUDGED: Final = "Nothing was judged"
_NAME: Final = 40


def three_questions(told: Told) -> tuple[Question, Question, Question]:
    """Return the questions in their order. Without harm nothing says that it is not the scales."""
    return (
        _scales(told),
        _format(told),
        Question(
            id="release",
            question="May it go out?",
            answer="– not decided",
            because="needs a policy and checked answers",
        ),
    )


def _scales(told: Told) -> Question:
    answer, because = _by_harm(told) or _by_clipping(told)
    return Question(id="scales", question="Is it the scales?", answer=answer, because=because)


def _by_harm(told: Told) -> tuple[str, str] | None:
    """Return what the harm that fresh scales would remove says; None: that was not measured."""
    share = drift_share(told.own_harm) if told.own_harm else None
    blamed = told.first is not None and told.first.severity != "note"
    if (
        share is None
        or told.state == "too few"
        or (blamed and told.first and told.first.remedy == "elsewhere")
    ):
        return None
    because = "fresh scales do no less harm"
    if share:
        because = f"{percent(share)} of the harm goes with fresh scales"
    if share <= HARDLY:
        return "No", because
    yes = "Yes" if share >= MOSTLY else "Partly"
    return (yes if told.is_served else f"If served, {yes.lower()}"), because


def _by_clipping(told: Told) -> tuple[str, str]:
    if told.state in ("fault", "warning") and told.first is not None and told.clips != NOTHING_JUDGED:
        if told.first.remedy == "elsewhere":
            return "– not measured", "the values were so before quantization"
        yes = "Yes" if told.is_served else "If served, yes"
        return yes, _lower(told.headline if told.clips == NOTHING_CLIPS else told.clips)
    if told.state == "sound":
        return told.clips, "whether rounding does harm was not measured"
    return "– not measured", "too few requests" if told.state == "too few" else "nothing was judged"


def _format(told: Told) -> Question:
    """Return what does least harm among the candidates that take no more bytes than FP8 does."""
    answer, because = "– not measured", "harm needs queries, which the trace does not hold"
    if not told.case.run.record.replays_attention:
        because = "attention was left out of the replay"
    if told.harm is not None:
        because = "no format was replayed beside others"
        best, own = told.harm.smallest_harm, told.own_harm
        if told.state == "too few":
            because = "too few requests"
        elif best is not None and best.harm is not None:
            chosen, among = best, "the least"
            if own is not best and own is not None and _is_alike(told.harm, own, best.harm):
                chosen, among = own, "as little as any"
            answer = plain(chosen.candidate, _NAME)
            because = f"harm {harm_figure(told.harm, chosen.harm)}, {among} of what is no larger than FP8"
    return Question(id="format", question="Which cache format?", answer=answer, because=because)


def _is_alike(harm: Harm, own: CandidateHarm, least: float) -> bool:
    """Return whether the answer's scales are as small as FP8, and by their interval as good as the least."""
    return own.candidate in harm.no_larger and own.harm_low is not None and own.harm_low <= least


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
