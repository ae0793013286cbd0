"""From what was found to the answer: its state, what it is about, where, how much, what to do, how sure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from kvtrace.figures import count, percent, times
from kvtrace.findings.rule import Tier
from kvtrace.plain_text import plain
from kvtrace.report.answer.action import action_of
from kvtrace.report.answer.model import (
    SIGNS,
    Answer,
    Compared,
    HarmedHead,
    Kind,
    NotMeasured,
    RangeUsed,
    State,
    Sure,
)
from kvtrace.report.answer.questions import three_questions
from kvtrace.report.answer.words import RULES, head_name, headline_of, heads_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.findings.diagnose import Diagnosis
    from kvtrace.findings.finding import Finding, Head
    from kvtrace.findings.run.case import Case, Row, Subject

CLIPS: Final = ("k-clips", "v-clips")
_NAME: Final = 40
_MOST_OTHERS: Final = 3
_ORDER: Final[tuple[State, ...]] = ("sound", "warning", "fault", "not measured")
_OF_SEVERITY: Final[dict[str, State]] = {"error": "fault", "warning": "warning", "note": "sound"}


def make_answer(case: Case, diagnosis: Diagnosis, places: Mapping[tuple[str, Head], str]) -> Answer:
    """Return the answer on a run.

    places: (candidate, head) → where it clips most, in words; a head that clips nowhere is left out.
    """
    told = _Told(case, diagnosis)
    return Answer(
        state=told.state,
        kind=told.kind,
        headline=told.headline,
        candidate=told.subject.name if told.subject else None,
        most_harmed=_harmed(told.heads),
        where=tuple(_where(told, places)),
        matters=tuple(_matters(told)),
        action=action_of(case, told.subject, told.first, is_served=told.is_served),
        sure=_sure(told),
        questions=three_questions(told.state, told.clips, told.first, is_served=told.is_served),
        compared=tuple(told.compared()),
        ruler=tuple(told.ruler()),
        not_measured=_NOT_MEASURED,
    )


@dataclass
class _Told:
    """What the parts of an answer share."""

    case: Case
    diagnosis: Diagnosis

    @cached_property
    def valid(self) -> list[Subject]:
        return [one for one in self.case.subjects if one.is_valid]

    @cached_property
    def is_served(self) -> bool:
        """Whether the answer is about scales that ran."""
        return self.subject is not None and self.subject.in_effect

    @cached_property
    def subject(self) -> Subject | None:
        """The scales that ran; of several that did not the recommended ones."""
        served = [one for one in self.case.subjects if one.in_effect]
        return min(served or self.valid or self.case.subjects, key=self._preference, default=None)

    @cached_property
    def first(self) -> Finding | None:
        """The first of the trace or of the subject that is no note; else the one that says too few."""
        name = self.subject.name if self.subject else None
        own = [one for one in self.diagnosis.findings if one.candidate in (None, name)]
        blaming = (one for one in own if one.severity != "note")
        too_few = (one for one in own if RULES[one.id].tier_of(one) is Tier.cannot_tell)
        return next(blaming, None) or next(too_few, None)

    @cached_property
    def state(self) -> State:
        if self.first is None:
            return "sound" if self.valid else "not measured"
        return "too few" if self.first.severity == "note" else _OF_SEVERITY[self.first.severity]

    @cached_property
    def kind(self) -> Kind:
        if not self.valid:
            return "invalid"
        if self.is_served:
            blamed = self.first is not None and self.first.severity != "note"
            return RULES[self.first.id].is_about if self.first and blamed else "as served"
        return "choice" if len(self.case.subjects) > 1 else "what-if"

    @cached_property
    def headline(self) -> str:
        if self.subject is None:
            return "Nothing could be judged"
        name = plain(self.subject.name, _NAME)
        compared = len(self.case.subjects)
        if self.kind == "choice" and self.state == "sound":
            return f"Take {name}: {self.clips.lower()}, of {compared} scales compared"
        if self.first is None:
            who = ("Scale 1.0", "s") if self.subject.kind == "unit" else ("These scales", "")
            covers = f"cover{who[1]}" if self.is_served else "would cover"
            return f"{who[0]} {covers} this traffic: {self.clips.lower()}"
        if self.kind == "choice" and self.state != "too few":
            return f"None of {compared} scales fits; {name} loses least"
        return headline_of(self.first, num_heads=self.num_heads(self.first), is_what_if=not self.is_served)

    @cached_property
    def clips(self) -> str:
        """Whether the subject's scales clip, in words."""
        if self.subject is None or not self.subject.is_valid:
            return "Nothing was judged"
        if not any(row["clip_error"] for row in self.rows(self.subject)):
            return "Nothing clips"
        clips = any(one.id in CLIPS for one in self.of(self.subject))
        return "Clips enough to matter" if clips else "Nothing clips enough to matter"

    @cached_property
    def heads(self) -> list[Head]:
        """Heads of the subject: by what they lose to clipping, then by how much of their range they use."""
        if self.subject is None or not self.subject.is_valid:
            return []
        ranked = sorted(self.rows(self.subject), key=lambda row: (-(row["clip_error"] or 0), -_used(row)))
        return [(row["layer"], row["kv_head"], row["tensor"]) for row in ranked]

    def rows(self, subject: Subject) -> list[Row]:
        return self.case.whole_heads(subject.name) if subject.is_valid else []

    def of(self, subject: Subject) -> list[Finding]:
        return [one for one in self.diagnosis.findings if one.candidate == subject.name]

    def state_of(self, subject: Subject) -> State:
        if not subject.is_valid:
            return "not measured"
        return max(
            (_OF_SEVERITY[one.severity] for one in self.of(subject)), key=_ORDER.index, default="sound"
        )

    def num_heads(self, finding: Finding) -> int:
        """Return the heads of the tensors that a finding names, K and V counted apart."""
        tensors = {tensor for _, _, tensor in finding.heads}
        return sum(row["tensor"] in tensors for row in self.rows(self.subject)) if self.subject else 0

    def compared(self) -> list[Compared]:
        """Return every set of scales with its state, the subject first."""
        subjects = sorted(self.case.subjects, key=lambda one: one is not self.subject)
        return [Compared(one.name, self.state_of(one), self.in_words(one)) for one in subjects]

    def in_words(self, subject: Subject) -> str:
        if not subject.is_valid:
            return f"cannot be used: {subject.reason or 'no reason recorded'}"
        rows = self.rows(subject)
        clipping = sum(bool(row["clip_error"]) for row in rows)
        if not clipping:
            return "nothing clips"
        enough = {head for one in self.of(subject) if one.id in CLIPS for head in one.heads}
        matters = f"{len(enough):,}" if enough else "none"
        return f"clips enough to matter in {matters}, at all in {clipping:,}, of {count(len(rows), 'head')}"

    def ruler(self) -> list[RangeUsed]:
        """Return the head of K and of V that uses most of its range, the subject's first."""
        subjects = sorted(self.valid, key=lambda one: one is not self.subject)
        return [mark for one in subjects for mark in self._marks(one)]

    def _marks(self, subject: Subject) -> list[RangeUsed]:
        marks = []
        for tensor in ("k", "v"):
            rows = [row for row in self.rows(subject) if row["tensor"] == tensor and row["covered_amax"]]
            if rows:
                most = max(rows, key=_used)
                marks.append(
                    RangeUsed(
                        candidate=subject.name,
                        tensor=tensor,
                        layer=most["layer"],
                        kv_head=most["kv_head"],
                        ratio=_used(most),
                        clips_from=subject.clips_from,
                    )
                )
        return marks

    def _preference(self, subject: Subject) -> tuple[object, ...]:
        """Return the key that is smallest for the scales to take: by state, then by the energy lost."""
        rows = self.rows(subject)
        lost = max((row["clip_error"] or 0.0 for row in rows), default=0.0)
        other = sum(row["other_error"] or 0.0 for row in rows)
        return _ORDER.index(self.state_of(subject)), lost, other, subject.name


def _harmed(heads: Sequence[Head]) -> HarmedHead | None:
    if not heads:
        return None
    layer, kv_head, tensor = heads[0]
    return HarmedHead(layer=layer, kv_head=kv_head, tensor="k" if tensor == "k" else "v")


def _used(row: Row) -> float:
    """Return a head's largest magnitude against what its scale covers."""
    return row["max_abs"] / row["covered_amax"] if row["covered_amax"] and row["max_abs"] else 0.0


def _where(told: _Told, places: Mapping[tuple[str, Head], str]) -> list[str]:
    if not told.heads or told.subject is None:
        return []
    losing = {
        (row["layer"], row["kv_head"], row["tensor"]) for row in told.rows(told.subject) if row["clip_error"]
    }
    if told.state == "sound" or not losing:
        (row,) = [one for one in told.rows(told.subject) if _head(one) == told.heads[0]]
        return [f"closest to the edge: {head_name(told.heads[0])}, {times(_used(row))} of what is covered"]
    shown = [heads_in_words([head for head in told.heads if head in losing])]
    stratum = (
        told.first.where
        if told.first and told.first.where
        else places.get((told.subject.name, told.heads[0]))
    )
    return shown + ([stratum] if stratum else [])


def _head(row: Row) -> Head:
    return row["layer"], row["kv_head"], row["tensor"]


def _matters(told: _Told) -> list[str]:
    if told.subject is None or not told.heads:
        return []
    rows = told.rows(told.subject)
    (first,) = [row for row in rows if _head(row) == told.heads[0]]
    said = []
    if told.state != "sound" and first["clip_error"]:
        energy = percent(first["clip_error"])
        said.append(f"{head_name(told.heads[0])} loses {energy} of its energy to clipping")
        said.append(told.in_words(told.subject))
    elif flushed := max((row["flushed_frac"] or 0.0 for row in rows), default=0.0):
        said.append(f"at most {percent(flushed)} of a head's values are flushed to 0")
    return [*said, *_others(told), "harm was not measured: no queries"]


def _others(told: _Told) -> list[str]:
    """Return what becomes of the scales that the answer is not about."""
    others = [one for one in told.case.subjects if one is not told.subject]
    named = [f"{plain(one.name, _NAME)} {SIGNS[told.state_of(one)]}" for one in others[:_MOST_OTHERS]]
    more = len(others) - _MOST_OTHERS
    also = [f"{more} more"] if more > 0 else []
    return [f"beside it {', '.join(named + also)}"] if named else []


def _sure(told: _Told) -> Sure:
    requests = told.case.num_requests.get((None, None, None), 0)
    parts = [count(requests, "request"), "as served" if told.is_served else "what-if"]
    lacking = [one for one in told.diagnosis.findings if one.id == "coverage"]
    level: Literal["high", "medium", "low"]
    if told.first is not None and told.first.confidence != "certain":
        level = told.first.confidence
    elif told.state == "too few" or requests < 3:
        level = "low"
    else:
        level = "medium" if lacking or not told.is_served else "high"
    thin = [
        f"{plain(row['workload'], _NAME)} has {count(row['num_captured_requests'], 'request')}, needs 5"
        for one in lacking
        for row in one.evidence
        if row["num_sampled_requests"] > 0 and row["num_captured_requests"] < 5
    ]
    return Sure(level=level, text="; ".join([", ".join(parts), *thin[:_MOST_OTHERS]]))


_NOT_MEASURED: Final = (
    NotMeasured("harm", "the trace holds no queries", None),
    NotMeasured("answers lost", "no checked answers were given", None),
    NotMeasured("useful goodput and room", "no serving records were given", None),
)
