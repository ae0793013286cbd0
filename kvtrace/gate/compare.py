"""The decision table over candidates of one or several runs: what was held constant, evidence, decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.gate.check import check, policy_reference
from kvtrace.gate.comparison import Comparison, Decision, DecisionRow, Role
from kvtrace.gate.constant import held_constant
from kvtrace.gate.contenders import changed_facts, contenders, named_baseline, rival
from kvtrace.gate.evidence import measurements, nested_tensors, paired_evidence, tensor_evidence
from kvtrace.gate.outcome import Verdict
from kvtrace.gate.segment_pairs import EVERY_WORKLOAD
from kvtrace.gate.segments import protected_segments
from kvtrace.query import connect_with_views
from kvtrace.stats.fractions import METHOD
from kvtrace.stats.jackknife import METHOD as RATIO_METHOD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import duckdb

    from kvtrace.gate.comparison import Paired, TensorEvidence
    from kvtrace.gate.contenders import Contender
    from kvtrace.gate.evidence import Measurements
    from kvtrace.gate.outcome import SegmentOutcome
    from kvtrace.gate.policy import PolicyFile
    from kvtrace.gate.segments import ProtectedSegment
    from kvtrace.runs.open import Run

_CONFIDENCE: Final = 0.95
_DECISIONS: Final = {
    Verdict.within: Decision.within,
    Verdict.breached: Decision.breached,
    Verdict.not_enough: Decision.not_enough,
}


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
    connected = [(run, connect_with_views(run)) for run in runs]
    table, repeated = contenders(connected, same_conditions=not different)
    against = {
        name: rival(name, table, None if baseline is None else named_baseline(baseline, table))
        for name in table
    }
    confidence = policy_file.policy.confidence if policy_file else _CONFIDENCE
    segments = protected_segments(
        policy_file.policy if policy_file else EVERY_WORKLOAD, _workloads(one for _, one in connected)
    )
    measured = {
        name: measurements(one.connection, one.candidate, segments)
        for name, one in table.items()
        if one.is_valid
    }
    constant = tuple(field for field, value in shared.items() if value is not None)
    return Comparison(
        runs=tuple(str(run.path) for run in runs),
        policy=policy_reference(policy_file, runs[0]) if policy_file else None,
        held_constant=shared,
        allowed_different={field: tuple(values) for field, values in different.items()},
        confidence=confidence,
        interval_method=METHOD,
        ratio_interval_method=RATIO_METHOD,
        rows=tuple(
            _row(name, against[name], table, measured, segments, constant, different, policy_file, confidence)
            for name in table
        ),
        same_rows=repeated,
        baseline=baseline,
    )


def _row(
    name: str,
    against: str | None,
    table: dict[str, Contender],
    measured: Mapping[str, Measurements],
    segments: Sequence[ProtectedSegment],
    constant: tuple[str, ...],
    different: Mapping[str, object],
    policy_file: PolicyFile | None,
    confidence: float,
) -> DecisionRow:
    one = table[name]
    decision, reason, decided = _decision(one, policy_file)
    evidence: tuple[TensorEvidence, ...] = ()
    paired: tuple[Paired, ...] = ()
    not_paired: str | None = "invalid, so never scored"
    if one.is_valid:
        evidence = tensor_evidence(one.connection, one.candidate, measured[name], confidence)
        paired, not_paired = _pairs(one, against, table, measured, segments, confidence, name)
    changed = _changed(one, table[against], different) if against else ()
    return DecisionRow(
        name=name,
        run=str(one.run.path),
        candidate=one.candidate,
        role=one.role,
        setup=one.setup if one.is_valid else "cannot be run",
        note=one.note,
        hypothetical=one.hypothetical,
        against=against,
        changed=changed,
        held_constant=(*constant, *_same_facts(one, table[against])) if against else constant,
        evidence=evidence,
        paired=paired,
        not_paired=not_paired,
        decision=decision,
        reason=reason,
        segments=decided,
    )


def _workloads(connections: Iterable[duckdb.DuckDBPyConnection]) -> set[str]:
    return {
        row[0]
        for connection in connections
        for row in connection.execute("SELECT DISTINCT workload FROM requests").fetchall()
    }


def _pairs(
    one: Contender,
    against: str | None,
    table: Mapping[str, Contender],
    measured: Mapping[str, Measurements],
    segments: Sequence[ProtectedSegment],
    confidence: float,
    name: str,
) -> tuple[tuple[Paired, ...], str | None]:
    if against is None:
        return (), "compared with no other row"
    other = table[against]
    if other.role is Role.baseline:
        return (), "BF16 clips nothing: the evidence is the difference"
    if not measured[name].counts.pairs_with(measured[against].counts):
        return (), f"{against} was not replayed on the same vectors"
    nested = nested_tensors((one.connection, one.candidate), (other.connection, other.candidate))
    return paired_evidence(
        measured[name], measured[against], segments, nested=nested, confidence=confidence
    ), None


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
    return _DECISIONS[found.verdict], "; ".join(deciding) or None, found.segments


def _changed(one: Contender, other: Contender, different: Mapping[str, object]) -> tuple[str, ...]:
    runs_differ = tuple(different) if one.run is not other.run else ()
    return (*changed_facts(one, other), *(f"{field} (allowed to differ)" for field in runs_differ))


def _same_facts(one: Contender, other: Contender) -> tuple[str, ...]:
    return tuple(what for what, value in one.facts.items() if value == other.facts.get(what))
