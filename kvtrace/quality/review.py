"""The answers to look at: where a variant and the baseline disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kvtrace.quality.comparison import Disagreement

if TYPE_CHECKING:
    from kvtrace.quality.pairs import Answers

_MOST: Final = 1_000
_ORDER: Final = ("lost", "lost once", "won")


def disagreements(before: Answers, after: Answers, again: Answers | None, variant: str) -> list[Disagreement]:
    """Return up to 1,000: lost under both runs of the baseline first, then under one, then won."""
    found = []
    for key, row in before.items():
        other = after.get(key)
        if other is None or "unjudged" in (row.outcome, other.outcome) or row.passed == other.passed:
            continue
        second = again.get(key) if again is not None else None
        found.append(
            Disagreement(
                variant=variant,
                id=row.id,
                task=row.task,
                repetition=row.repetition,
                cluster=row.cluster,
                kind=_kind(lost=row.passed, lost_by_noise=second is not None and not second.passed),
                baseline=row.outcome,
                noise=None if second is None else second.outcome,
                candidate=other.outcome,
                reason=other.reason,
            )
        )
    found.sort(key=lambda one: _ORDER.index(one.kind))  # stable: by key within a kind
    return found[:_MOST]


def _kind(*, lost: bool, lost_by_noise: bool) -> Literal["lost", "lost once", "won"]:
    if not lost:
        return "won"
    return "lost once" if lost_by_noise else "lost"
