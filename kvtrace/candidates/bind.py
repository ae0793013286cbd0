"""Bind every candidate to every trace; what cannot be used becomes invalid with its reason."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InvalidCandidateError, NoValidCandidateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Candidate
    from kvtrace.trace.reader import Trace

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Bound:
    """All candidates of a run, in order: their scales in each source, or why they are invalid."""

    candidates: tuple[Candidate, ...]
    scales: Mapping[str, Mapping[str, AppliedScales]]
    """Candidate's name → source → scales; a source without an entry has no such candidate."""
    reasons: Mapping[str, InvalidCandidateError]
    """Name of each invalid candidate → why."""

    @property
    def valid(self) -> tuple[Candidate, ...]:
        """Return the candidates that are scored."""
        return tuple(one for one in self.candidates if one.name not in self.reasons)

    def of(self, candidate: Candidate) -> tuple[AppliedScales, ...]:
        """Return a candidate's scales in the sources that have it; none where it is invalid."""
        return tuple(self.scales.get(candidate.name, {}).values())

    def in_source(self, source: str) -> tuple[AppliedScales, ...]:
        """Return the scales of one source, by candidate."""
        return tuple(found[source] for found in self.scales.values() if source in found)


def bind_candidates(candidates: Sequence[Candidate], sources: Mapping[str, Trace]) -> Bound:
    """Return the candidates' scales in every source. Their names differ.

    Raises NoValidCandidateError: none of the artifacts asked for is valid in any cache (or, where none was
    asked for, no candidate).
    """
    scales: dict[str, Mapping[str, AppliedScales]] = {}
    reasons: dict[str, InvalidCandidateError] = {}
    for candidate in candidates:
        try:
            scales[candidate.name] = _scales_in(candidate, sources)
        except InvalidCandidateError as error:
            reasons[candidate.name] = error
    asked = [one for one in candidates if one.is_given or one.artifact is not None] or candidates
    if not any(one.name in scales for one in asked):
        invalid = {one.name: str(reasons[one.name]) for one in asked}
        raise NoValidCandidateError(
            f"no candidate can be replayed: {_said_once(invalid) or 'none was given'}"
        )
    return Bound(tuple(candidates), scales, reasons)


def _scales_in(candidate: Candidate, sources: Mapping[str, Trace]) -> dict[str, AppliedScales]:
    found: dict[str, AppliedScales] = {}
    for source, trace in sources.items():
        try:
            applied = candidate.scales_for(trace)
        except InvalidCandidateError as error:
            where = f" (in {source})" if len(sources) > 1 else ""
            raise InvalidCandidateError(f"{error}{where}", error.reason) from error
        if applied is not None:
            found[source] = applied
    if not found:
        raise InvalidCandidateError("no captured engine had a static FP8 cache", "no-fp8")
    return found


def _said_once(reasons: Mapping[str, str]) -> str:
    """Return each distinct reason once, after the names that it holds for."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        names[reason].append(name)
    return "; ".join(f"{_some(found)}: {reason}" for reason, found in names.items())


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
