"""What the parts of an answer share: the scales that it is about, the finding that leads, the heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kvtrace.figures import count
from kvtrace.findings.diagnose import findings_about
from kvtrace.findings.rule import Tier, findings_of
from kvtrace.findings.rules import DIAGNOSED
from kvtrace.plain_text import plain
from kvtrace.report.answer.model import Kind, RangeUsed, State
from kvtrace.report.answer.questions import NOTHING_CLIPS, NOTHING_JUDGED
from kvtrace.report.answer.words import RULES, headline_of

if TYPE_CHECKING:
    from kvtrace.findings.diagnose import Diagnosis
    from kvtrace.findings.finding import Finding, Head
    from kvtrace.findings.run.case import Case, Row, Subject
    from kvtrace.report.harm.model import CandidateHarm, Harm

CLIPS: Final = ("k-clips", "v-clips")
NAME: Final = 40
_ORDER: Final[tuple[State, ...]] = ("sound", "warning", "fault", "not measured")
_OF_SEVERITY: Final[dict[str, State]] = {"error": "fault", "warning": "warning", "note": "sound"}


@dataclass
class Told:
    """What the parts of an answer share."""

    case: Case
    diagnosis: Diagnosis
    harm: Harm | None = None
    """None: no queries were captured."""

    @cached_property
    def valid(self) -> list[Subject]:
        """The sets of scales that there are sums under."""
        return [one for one in self.case.subjects if one.is_valid]

    @cached_property
    def is_served(self) -> bool:
        """Whether the answer is about scales that ran, as they ran."""
        return self.subject is not None and self.subject.in_effect and not self.subject.written_otherwise

    @cached_property
    def subject(self) -> Subject | None:
        """The scales that ran; of several that did not the recommended ones."""
        return next(iter(self.by_preference), None)

    @cached_property
    def by_preference(self) -> list[Subject]:
        """What was judged: what ran, then the scales to take, the best first, then those that nobody can."""
        return sorted(
            self.case.subjects, key=lambda one: (not one.in_effect, not one.is_valid, *self._preference(one))
        )

    @cached_property
    def first(self) -> Finding | None:
        """The first that is no note, of the trace, the subject or what ran; else that there is too little."""
        own = findings_about(self.diagnosis.findings, self.subject)
        blaming = (one for one in own if one.severity != "note")
        too_few = (one for one in own if RULES[one.id].tier_of(one) is Tier.cannot_tell)
        return next(blaming, None) or next(too_few, None)

    @cached_property
    def state(self) -> State:
        """How bad it is."""
        if self.first is None:
            return "sound" if self.valid else "not measured"
        return "too few" if self.first.severity == "note" else _OF_SEVERITY[self.first.severity]

    @cached_property
    def kind(self) -> Kind:
        """What kind of answer it is."""
        if not self.valid:
            return "invalid"
        if self.is_served:
            blamed = self.first is not None and self.first.severity != "note"
            return RULES[self.first.id].is_about if self.first and blamed else "as served"
        return "choice" if len(self.case.subjects) > 1 else "what-if"

    @cached_property
    def headline(self) -> str:
        """What is the case, in at most 14 words."""
        if self.subject is None:
            return "Nothing could be judged"
        name = plain(self.subject.name, NAME)
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
            return NOTHING_JUDGED
        if not any(row["clip_error"] for row in self.rows(self.subject)):
            return NOTHING_CLIPS
        clips = any(one.id in CLIPS for one in self.of(self.subject))
        return "Clips enough to matter" if clips else "Nothing clips enough to matter"

    @cached_property
    def heads(self) -> list[Head]:
        """Heads of the subject: by what they lose to clipping, then by how much of their range they use."""
        if self.subject is None or not self.subject.is_valid:
            return []
        ranked = sorted(
            self.rows(self.subject), key=lambda row: (-(row["clip_error"] or 0), -range_used(row))
        )
        return [head_of(row) for row in ranked]

    @property
    def own_harm(self) -> CandidateHarm | None:
        """What the subject does to attention; None: not measured."""
        return self.harm.of(self.subject.name) if self.harm and self.subject else None

    def rows(self, subject: Subject) -> list[Row]:
        """Return what each head covers and loses; nothing where the scales are invalid."""
        return self.case.whole_heads(subject.name) if subject.is_valid else []

    def of(self, subject: Subject) -> list[Finding]:
        """Return the findings on one set of scales; what is not judged is asked about its losses alone."""
        found = self.diagnosis.findings if subject in self.case.subjects else self._of_the_rest
        return [one for one in found if one.candidate == subject.name]

    @cached_property
    def _of_the_rest(self) -> list[Finding]:
        return list(findings_of([one for one in DIAGNOSED if one.role == "symptom"], self.case.beside()))

    def state_of(self, subject: Subject) -> State:
        """Return how bad one set of scales is."""
        if not subject.is_valid:
            return "not measured"
        return max(
            (_OF_SEVERITY[one.severity] for one in self.of(subject)), key=_ORDER.index, default="sound"
        )

    def num_heads(self, finding: Finding) -> int:
        """Return the heads of the tensors that a finding names, K and V counted apart."""
        tensors = {tensor for _, _, tensor in finding.heads}
        return sum(row["tensor"] in tensors for row in self.rows(self.subject)) if self.subject else 0

    def shown_state(self, subject: Subject) -> State:
        """Return how bad one set of scales is; of too few requests none is sound."""
        return "too few" if self.state == "too few" and subject.is_valid else self.state_of(subject)

    def in_words(self, subject: Subject) -> str:
        """Return where one set of scales clips, or why it cannot be used."""
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
                most = max(rows, key=range_used)
                marks.append(
                    RangeUsed(
                        candidate=subject.name,
                        tensor=tensor,
                        layer=most["layer"],
                        kv_head=most["kv_head"],
                        ratio=range_used(most),
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


def range_used(row: Row) -> float:
    """Return a head's largest magnitude against what its scale covers."""
    return row["max_abs"] / row["covered_amax"] if row["covered_amax"] and row["max_abs"] else 0.0


def head_of(row: Row) -> Head:
    """Return which head a row is of."""
    return row["layer"], row["kv_head"], row["tensor"]
