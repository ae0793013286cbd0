"""The table of the cases with right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from incidents.answered_judge import HOW_ANSWERED, Judged, judge
from incidents.first_screen import print_first_screens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from incidents.answers import Case

_SEED_STEP: Final = 1_009
"""From one draw of a case to its next: a prime, so that draws of different cases do not meet."""
CAUSE_FIRST: Final = 0.98
SOUND: Final = 0.99


def print_answered(cases: Sequence[tuple[int, Case]], base: int, *, draws: int, hardest: bool) -> bool:
    """Judge each case `draws` times, print a line each and the counts; return whether enough are right."""
    print(f"\n{HOW_ANSWERED}\n")
    judged = []
    for number, case in cases:
        for draw in range(draws):
            one = judge(case, base + number + draw * _SEED_STEP, hardest=hardest)
            judged.append(one)
            print(_line(number, one), flush=True)
    return _summary(judged)


def _line(number: int, one: Judged) -> str:
    mark = " " if one.is_right else "-" if one.is_first else "!"
    said = " + ".join(one.listed) or "nothing above a note"
    wrong = [
        f"{name}: {text}"
        for name, text in (
            ("place", one.wrong_place),
            ("remedy", one.wrong_remedy),
            ("beside", " + ".join(one.unexplained)),
        )
        if text
    ]
    return (
        f"{mark}{one.case.point}.{number:<3}{one.case.name:<62} {one.base:<15} {one.strength:<46} "
        f"{one.verdict:<12}{said}" + (f"   ({'; '.join(wrong)})" if wrong else "")
    )


def _summary(judged: Sequence[Judged]) -> bool:
    planted = [one for one in judged if not one.case.is_sound]
    healthy = [one for one in judged if one.case.is_sound]
    print()
    for point in sorted({one.case.point for one in judged}):
        print(f"point {point}: {_counts([one for one in planted if one.case.point == point])}")
    print(f"planted: {_counts(planted)}")
    quiet = sum(one.is_first for one in healthy)
    print(f"healthy: {quiet} of {len(healthy)} without a finding above a note")
    fit = print_first_screens(judged)
    first = sum(one.is_first for one in planted)
    return fit and first >= CAUSE_FIRST * len(planted) and quiet >= SOUND * len(healthy)


def _counts(planted: Sequence[Judged]) -> str:
    of = {what: sum(one.verdict == what for one in planted) for what in _VERDICTS}
    first = [one for one in planted if one.is_first]
    return (
        f"{of.pop('cause')} of {len(planted)} with the cause first ("
        + ", ".join(f"{what} {count}" for what, count in of.items())
        + f"); of those: wrong place {sum(bool(one.wrong_place) for one in first)}, wrong remedy "
        f"{sum(bool(one.wrong_remedy) for one in first)}, with a consequence explained "
        f"{sum(bool(one.explained) for one in first)}, with one beside it "
        f"{sum(bool(one.unexplained) for one in first)}"
    )


_VERDICTS: Final = ("cause", "symptom", "other cause", "missed", "refused")
