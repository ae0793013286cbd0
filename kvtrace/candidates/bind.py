"""Bind every candidate to every trace; what cannot be used becomes invalid with its reason."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.candidates.apply import apply_candidate
from kvtrace.errors import InvalidCandidateError, NoValidCandidateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.candidates.apply import AppliedScales
    from kvtrace.candidates.candidate import Candidate
    from kvtrace.trace.reader import Trace

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class BoundCandidate:
    """A candidate and its scales in each source, or why it is invalid."""

    candidate: Candidate
    scales: Mapping[str, AppliedScales]
    """By source; a source without an entry has no such candidate. Empty where invalid."""
    reason: str | None = None

    @property
    def hypothetical(self) -> bool:
        """Whether the captured engine of any source did something else."""
        return not self.scales or any(scales.hypothetical for scales in self.scales.values())

    @property
    def granularity(self) -> str | None:
        """Return tensor or attn_head as applied, the finer where sources differ."""
        return min((s.granularity for s in self.scales.values() if s.granularity), default=None)

    @property
    def note(self) -> str | None:
        """Return the distinct notes of all sources."""
        notes = dict.fromkeys(scales.note for scales in self.scales.values() if scales.note)
        return "; ".join(notes) or None


def bind_candidates(candidates: Sequence[Candidate], sources: Mapping[str, Trace]) -> list[BoundCandidate]:
    """Return one bound candidate each, in order.

    Raises NoValidCandidateError: none of the artifacts asked for is valid (or, where none was, no candidate).
    """
    bound = [_bind(candidate, sources) for candidate in candidates]
    asked = [one for one in bound if one.candidate.kind == "artifact"] or bound
    if not any(one.reason is None for one in asked):
        raise NoValidCandidateError(f"no candidate can be replayed: {_reasons(asked) or 'none was given'}")
    return bound


def _reasons(invalid: Sequence[BoundCandidate]) -> str:
    """Return each distinct reason once, after the names that it holds for."""
    names: dict[str | None, list[str]] = defaultdict(list)
    for one in invalid:
        names[one.reason].append(one.candidate.name)
    return "; ".join(f"{_some(found)}: {reason}" for reason, found in names.items())


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _bind(candidate: Candidate, sources: Mapping[str, Trace]) -> BoundCandidate:
    scales: dict[str, AppliedScales] = {}
    for source, trace in sources.items():
        try:
            applied = apply_candidate(candidate, trace)
        except InvalidCandidateError as error:
            where = f" (in {source})" if len(sources) > 1 else ""
            return BoundCandidate(candidate, {}, f"{error}{where}")
        if applied is not None:
            scales[source] = applied
    if not scales:
        return BoundCandidate(candidate, {}, "no captured engine had a static FP8 cache")
    return BoundCandidate(candidate, scales)
