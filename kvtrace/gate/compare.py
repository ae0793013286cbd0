"""The decision table over candidates of one or several runs: what was held constant, evidence, decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.gate.check import check, policy_reference
from kvtrace.gate.comparison import Comparison, Decision, DecisionRow, Role
from kvtrace.gate.constant import held_constant
from kvtrace.gate.contenders import changed_facts, contenders, rival
from kvtrace.gate.evidence import nested_tensors, paired_evidence, tensor_evidence
from kvtrace.gate.outcome import Verdict
from kvtrace.gate.request_counts import request_counts
from kvtrace.query import connect_with_views
from kvtrace.stats.fractions import METHOD

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kvtrace.gate.comparison import Paired, TensorEvidence
    from kvtrace.gate.contenders import Contender
    from kvtrace.gate.policy import PolicyFile
    from kvtrace.gate.request_counts import RequestCounts
    from kvtrace.runs.open import Run

_CONFIDENCE: Final = 0.95
_DECISIONS: Final = {
    Verdict.within: Decision.within,
    Verdict.breached: Decision.breached,
    Verdict.not_enough: Decision.not_enough,
}


def compare(
    runs: Sequence[Run], policy_file: PolicyFile | None = None, *, allow_different: Collection[str] = ()
) -> Comparison:
    """Return the decision table of all candidates.

    policy_file: decides; None: nothing is decided. allow_different: fields that the runs may differ in, shown
    with their values. A candidate that no engine can run is invalid and never scored; one that an engine runs
    differently than asked is scored as it runs, with a note. Raises ComparisonError: the runs differ in
    something that should be constant, or a field does not exist.
    """
    shared, different = held_constant(runs, allow_different)
    connected = [(run, connect_with_views(run)) for run in runs]
    table, repeated = contenders(connected, same_conditions=not different)
    confidence = policy_file.policy.confidence if policy_file else _CONFIDENCE
    counts = {
        name: request_counts(one.connection, one.candidate) for name, one in table.items() if one.is_valid
    }
    constant = tuple(field for field, value in shared.items() if value is not None)
    return Comparison(
        runs=tuple(str(run.path) for run in runs),
        policy=policy_reference(policy_file, runs[0]) if policy_file else None,
        held_constant=shared,
        allowed_different={field: tuple(values) for field, values in different.items()},
        confidence=confidence,
        interval_method=METHOD,
        rows=tuple(_row(name, table, counts, constant, different, policy_file, confidence) for name in table),
        same_rows=repeated,
    )


def _row(
    name: str,
    table: dict[str, Contender],
    counts: Mapping[str, RequestCounts],
    constant: tuple[str, ...],
    different: Mapping[str, object],
    policy_file: PolicyFile | None,
    confidence: float,
) -> DecisionRow:
    one = table[name]
    against = rival(name, table)
    decision, reason = _decision(one, policy_file)
    evidence: tuple[TensorEvidence, ...] = ()
    paired: tuple[Paired, ...] = ()
    not_paired: str | None = "invalid, so never scored"
    if one.is_valid:
        evidence = tensor_evidence(one.connection, one.candidate, counts[name], confidence)
        paired, not_paired = _pairs(one, against, table, counts, confidence, name)
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
    )


def _pairs(
    one: Contender,
    against: str | None,
    table: Mapping[str, Contender],
    counts: Mapping[str, RequestCounts],
    confidence: float,
    name: str,
) -> tuple[tuple[Paired, ...], str | None]:
    if against is None:
        return (), "nothing simpler to compare it with"
    other = table[against]
    if other.role is Role.baseline:
        return (), "BF16 clips nothing: the evidence is the difference"
    if not counts[name].pairs_with(counts[against]):
        return (), f"{against} was not replayed on the same vectors"
    nested = nested_tensors((one.connection, one.candidate), (other.connection, other.candidate))
    return paired_evidence(counts[name], counts[against], nested=nested, confidence=confidence), None


def _decision(one: Contender, policy_file: PolicyFile | None) -> tuple[Decision, str | None]:
    if not one.is_valid:
        return Decision.invalid, one.reason
    if one.role is Role.baseline:
        return Decision.baseline, None
    if policy_file is None:
        return Decision.no_policy, None
    found = check(one.run, policy_file, one.candidate)
    deciding = [segment.name for segment in found.segments if segment.verdict is found.verdict]
    return _DECISIONS[found.verdict], "; ".join(deciding) or None


def _changed(one: Contender, other: Contender, different: Mapping[str, object]) -> tuple[str, ...]:
    runs_differ = tuple(different) if one.run is not other.run else ()
    return (*changed_facts(one, other), *(f"{field} (allowed to differ)" for field in runs_differ))


def _same_facts(one: Contender, other: Contender) -> tuple[str, ...]:
    return tuple(what for what, value in one.facts.items() if value == other.facts.get(what))
