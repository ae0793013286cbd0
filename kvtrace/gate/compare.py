"""The decision table over candidates of one or several runs: what was held constant, evidence, decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.gate.check import check, policy_reference
from kvtrace.gate.comparison import Comparison, Decision, DecisionRow, Role
from kvtrace.gate.constant import held_constant
from kvtrace.gate.contenders import changed_facts, contenders, named_baseline, rival
from kvtrace.gate.evidence import measurements, nested_tensors, paired_evidence, tensor_evidence
from kvtrace.gate.measure import workloads_of
from kvtrace.gate.segment_pairs import EVERY_WORKLOAD
from kvtrace.gate.segments import protected_segments
from kvtrace.query import connect_to_judge
from kvtrace.stats.fractions import METHOD
from kvtrace.stats.jackknife import METHOD as RATIO_METHOD

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kvtrace.gate.comparison import Paired, TensorEvidence
    from kvtrace.gate.contenders import Contender
    from kvtrace.gate.evidence import Measurements
    from kvtrace.gate.outcome import SegmentOutcome
    from kvtrace.gate.policy import PolicyFile
    from kvtrace.gate.segments import ProtectedSegment
    from kvtrace.runs.open import Run

_CONFIDENCE: Final = 0.95


def compare(
    runs: Sequence[Run],
    policy_file: PolicyFile | None = None,
    *,
    allow_different: Collection[str] = (),
    baseline: str | None = None,
) -> Comparison:
    """Return the decision table of all candidates.

    policy_file: decides; None: nothing is decided. allow_different: fields that the runs may differ in, shown
    with their values. baseline: the row, by name, that all others are compared with; None: each with the one
    that differs from it in the least. A candidate that no engine can run is invalid and never scored; one
    that an engine runs differently than asked is scored as it runs, with a note. Raises ComparisonError: the
    runs differ in something that should be constant, a field does not exist, or no valid row has the
    baseline's name.
    """
    shared, different = held_constant(runs, allow_different)
    connected = [(run, connect_to_judge(run)) for run in runs]
    contending, repeated = contenders(connected, same_conditions=not different)
    common = None if baseline is None else named_baseline(baseline, contending)
    confidence = policy_file.policy.confidence if policy_file else _CONFIDENCE
    segments = protected_segments(
        policy_file.policy if policy_file else EVERY_WORKLOAD,
        set().union(*(workloads_of(connection) for _, connection in connected)),
    )
    table = _Table(
        contending,
        measured={
            name: measurements(one.connection, one.candidate, segments)
            for name, one in contending.items()
            if one.is_valid
        },
        segments=segments,
        constant=tuple(field for field, value in shared.items() if value is not None),
        different=tuple(different),
        policy_file=policy_file,
        confidence=confidence,
    )
    return Comparison(
        runs=tuple(str(run.path) for run in runs),
        policy=policy_reference(policy_file, runs[0]) if policy_file else None,
        held_constant=shared,
        allowed_different={field: tuple(values) for field, values in different.items()},
        confidence=confidence,
        interval_method=METHOD,
        ratio_interval_method=RATIO_METHOD,
        rows=tuple(table.row(name, rival(name, contending, common)) for name in contending),
        same_rows=repeated,
        baseline=baseline,
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """What every row is made of."""

    contenders: dict[str, Contender]
    measured: Mapping[str, Measurements]
    segments: Sequence[ProtectedSegment]
    constant: tuple[str, ...]
    """Fields of all runs that are held constant."""
    different: tuple[str, ...]
    """Fields in which the runs may differ, and do."""
    policy_file: PolicyFile | None
    confidence: float

    def row(self, name: str, against: str | None) -> DecisionRow:
        """Return one row; against: the name of the row that it is compared with."""
        one = self.contenders[name]
        other = self.contenders[against] if against else None
        decision, reason, decided = _decision(one, self.policy_file)
        evidence: tuple[TensorEvidence, ...] = ()
        paired: tuple[Paired, ...] = ()
        not_paired: str | None = "invalid, so never scored"
        if one.is_valid:
            evidence = tensor_evidence(one.connection, one.candidate, self.measured[name], self.confidence)
            paired, not_paired = self._pairs(name, against)
        return DecisionRow(
            name=name,
            run=str(one.run.path),
            candidate=one.candidate,
            role=one.role,
            setup=one.setup if one.is_valid else "cannot be run",
            note=one.note,
            hypothetical=one.hypothetical,
            against=against,
            changed=_changed(one, other, self.different) if other else (),
            held_constant=(*self.constant, *_same_facts(one, other)) if other else self.constant,
            evidence=evidence,
            paired=paired,
            not_paired=not_paired,
            decision=decision,
            reason=reason,
            segments=decided,
        )

    def _pairs(self, name: str, against: str | None) -> tuple[tuple[Paired, ...], str | None]:
        if against is None:
            return (), "compared with no other row"
        one, other = self.contenders[name], self.contenders[against]
        if other.role is Role.baseline:
            return (), "BF16 clips nothing: the evidence is the difference"
        here, there = self.measured[name], self.measured[against]
        if not here.counts.pairs_with(there.counts):
            return (), f"{against} was not replayed on the same vectors"
        nested = nested_tensors((one.connection, one.candidate), (other.connection, other.candidate))
        return paired_evidence(here, there, self.segments, nested=nested, confidence=self.confidence), None


def _decision(
    one: Contender, policy_file: PolicyFile | None
) -> tuple[Decision, str | None, tuple[SegmentOutcome, ...]]:
    if not one.is_valid:
        return Decision.invalid, one.reason, ()
    if one.role is Role.baseline:
        return Decision.baseline, None, ()
    if policy_file is None:
        return Decision.no_policy, None, ()
    found = check(one.run, policy_file, one.candidate)
    deciding = [segment.name for segment in found.segments if segment.verdict is found.verdict]
    deciding += [f"harm ({one.limit})" for one in found.harm if one.verdict is found.verdict]
    return Decision[found.verdict.name], "; ".join(deciding) or None, found.segments


def _changed(one: Contender, other: Contender, different: tuple[str, ...]) -> tuple[str, ...]:
    runs_differ = different if one.run is not other.run else ()
    return (*changed_facts(one, other), *(f"{field} (allowed to differ)" for field in runs_differ))


def _same_facts(one: Contender, other: Contender) -> tuple[str, ...]:
    return tuple(what for what, value in one.facts.items() if value == other.facts.get(what))
