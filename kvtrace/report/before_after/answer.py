"""The first screen on two deployments: what changed, where it clips now, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, percent, times
from kvtrace.report.answer.model import Answer, Compared, RangeUsed, Sure
from kvtrace.report.answer.words import head_name
from kvtrace.report.before_after.differences import besides
from kvtrace.report.harm.words import harm_figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.report.before_after.model import Difference, HeadChange, ScalesChange
    from kvtrace.report.sections import Report

BEFORE: Final = "before"
AFTER: Final = "after"
_LEVELS: Final = ("low", "medium", "high")
_MOST_NAMED: Final = 3


def answer_on_two(
    before: Report,
    after: Report,
    scales: ScalesChange,
    changed: Sequence[HeadChange],
    differ: Sequence[Difference],
    *,
    clips: tuple[int, int],
) -> Answer:
    """Return the answer: state, places and action of the deployment after, beside the one before.

    changed: heads whose loss changed, the largest change first. clips: heads that clip enough to matter,
    before and after.
    """
    is_judged = before.answer.candidate is not None and after.answer.candidate is not None
    return Answer(
        state=after.answer.state,
        kind="before/after",
        headline=headline(before.answer, after.answer, clips),
        candidate=after.answer.candidate,
        most_harmed=after.answer.most_harmed,
        where=after.answer.where,
        matters=tuple(_matters(scales, changed, differ, _harm(before, after)))
        if is_judged
        else after.answer.matters,
        action=after.answer.action,
        sure=_sure(before.answer.sure, after.answer.sure),
        questions=after.answer.questions,
        compared=(_side(BEFORE, before.answer), _side(AFTER, after.answer)),
        ruler=(*_marks(BEFORE, before.answer), *_marks(AFTER, after.answer)),
        not_measured=after.answer.not_measured,
    )


def headline(before: Answer, after: Answer, clips: tuple[int, int]) -> str:
    """Return what changed, in at most 14 words and with two numbers."""
    sides = [name for name, one in ((BEFORE, before), (AFTER, after)) if _is_unjudged(one)]
    if sides:
        return f"No change can be told: {' and '.join(sides)} could not be judged"
    old, new = clips
    if old == new == 0:
        if (before.state, after.state) == ("sound", "sound"):
            return "Nothing clips enough to matter, before or after"
        return _of_states(before, after)
    if not old:
        return f"Clipping is new: it matters in {count(new, 'head')}, in none before"
    if not new:
        return f"Clipping is gone: it mattered in {count(old, 'head')}, in none after"
    if old == new:
        return f"As many heads clip enough to matter as before: {old:,}"
    more = "More" if new > old else "Fewer"
    return f"{more} heads clip enough to matter: {old:,} before, {new:,} after"


def _is_unjudged(answer: Answer) -> bool:
    return answer.kind == "invalid" or answer.state in ("not measured", "too few")


def _of_states(before: Answer, after: Answer) -> str:
    """Return how the states differ where clipping is not what tells them apart."""
    if before.state == after.state:
        return f"The state is as before: {after.state}, without clipping that matters"
    return f"From {before.state} to {after.state}, without clipping that matters"


def _matters(
    scales: ScalesChange, changed: Sequence[HeadChange], differ: Sequence[Difference], harm: str
) -> Iterator[str]:
    for one in changed[:1]:
        name = head_name((one.layer, one.kv_head, one.tensor))
        lost, had = percent(one.clip_error_after), percent(one.clip_error_before)
        yield f"{name} loses {lost} of its energy to clipping, {had} before"
    yield scales_in_words(scales)
    named = besides(differ)
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    yield (
        f"besides, {', '.join(named[:_MOST_NAMED] + more)} {'differs' if len(named) == 1 else 'differ'}"
        if named
        else "nothing else that was recorded differs"
    )
    yield harm


def _harm(before: Report, after: Report) -> str:
    """Return how harm changed; only numbers of one kind are compared."""
    sides = []
    for one in (before, after):
        own = one.harm.of(one.answer.candidate) if one.harm else None
        if one.harm is None or own is None:
            return "harm was not measured: no queries"
        sides.append((one.harm, own.harm))
    (old, had), (new, has) = sides
    if old.knowledge != new.knowledge:
        return "harm was not measured alike before and after"
    return f"harm is {harm_figure(new, has)}, before {harm_figure(old, had)}"


def scales_in_words(scales: ScalesChange) -> str:
    """Return how the scales changed.

    >>> from kvtrace.report.before_after.model import ScalesChange
    >>> scales_in_words(ScalesChange(180, 0, None, None, 0, 0))
    'the scales are the same in 180 heads'
    >>> scales_in_words(ScalesChange(180, 12, 0.5, 2.0, 0, 0))
    'the scales of 12 of 180 heads changed: they cover 0.50 × to 2.0 × as much'
    """
    if not scales.num_heads:
        return "no head has scales before and after"
    if not scales.num_changed:
        return f"the scales are the same in {count(scales.num_heads, 'head')}"
    ends = dict.fromkeys((times(scales.least_ratio), times(scales.largest_ratio)))
    return (
        f"the scales of {scales.num_changed:,} of {count(scales.num_heads, 'head')} changed: they cover "
        f"{' to '.join(ends)} as much"
    )


def _sure(before: Sure, after: Sure) -> Sure:
    """Return the less sure of both, and what each rests on."""
    level = min(before.level, after.level, key=_LEVELS.index)
    return Sure(level=level, text=f"before: {before.text}; after: {after.text}")


def _side(name: str, answer: Answer) -> Compared:
    own = next((one for one in answer.compared if one.candidate == answer.candidate), None)
    text = own.text if own else "nothing was judged"
    return Compared(name, answer.state, text, own.command if own else None)


def _marks(name: str, answer: Answer) -> list[RangeUsed]:
    return [
        RangeUsed(name, one.tensor, one.layer, one.kv_head, one.ratio, one.clips_from)
        for one in answer.ruler
        if one.candidate == answer.candidate
    ]
