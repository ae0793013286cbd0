"""Check one candidate of a run against a policy, segment by segment; no aggregate hides one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.errors import InputError, NoValidCandidateError
from kvtrace.gate.contenders import candidates_of
from kvtrace.gate.decide import EVENT_OF_LIMIT, decide_values, decide_vectors, value_p_values
from kvtrace.gate.envelope import (
    captured_outside,
    envelope_sentence,
    traces_without,
    untested_parts,
)
from kvtrace.gate.harm import decide_harm
from kvtrace.gate.measure import measure, workloads_of
from kvtrace.gate.outcome import CheckOutcome, PolicyReference, SegmentOutcome, Verdict
from kvtrace.gate.segments import protected_segments
from kvtrace.gate.triggers import fired_triggers
from kvtrace.plain_text import plain
from kvtrace.query import connect_to_judge
from kvtrace.stats.discoveries import HYPOTHESIS, PROCEDURE, q_values
from kvtrace.stats.fractions import METHOD, exceedance_p_values
from kvtrace.stats.jackknife import METHOD as RATIO_METHOD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.gate.contenders import Contender
    from kvtrace.gate.measure import MeasuredSegment
    from kvtrace.gate.outcome import LimitOutcome
    from kvtrace.gate.policy import Policy, PolicyFile
    from kvtrace.gate.segments import ProtectedSegment
    from kvtrace.query import RunConnection
    from kvtrace.runs.open import Run


def check(run: Run, policy_file: PolicyFile, candidate: str | None = None) -> CheckOutcome:
    """Return what the policy says of `candidate` in every protected segment.

    candidate: by name; None: the one that the engine used, else the only quantized one.
    A segment is breached where one limit is, within where all limits are and its coverage is as large as
    the policy asks, else there is not enough coverage. The whole is breached where one segment is, and
    within only where every segment is. Raises InputError: no such candidate, or several and none named.
    NoValidCandidateError: it is invalid.
    """
    connection = connect_to_judge(run)
    chosen = _chosen_candidate(connection, run, candidate)
    name, policy = chosen.candidate, policy_file.policy
    segments = protected_segments(policy, workloads_of(connection))
    measured = measure(connection, chosen, segments)
    by_segment = _q_values(segments, measured, policy)
    outcomes = tuple(
        _segment_outcome(segment, one, found, policy)
        for segment, one, found in zip(segments, measured, by_segment, strict=True)
    )
    outside = captured_outside(connection, name)
    harm = decide_harm(connection, name, policy.harm)
    return CheckOutcome(
        run=str(run.path),
        candidate=name,
        candidate_note=chosen.note,
        hypothetical=chosen.hypothetical,
        policy=policy_reference(policy_file, run),
        verdict=_overall([*(one.verdict for one in outcomes), *(one.verdict for one in harm)]),
        envelope=envelope_sentence(name, policy, outcomes),
        not_tested=untested_parts(outside, traces_without(connection, name), outcomes),
        triggers=fired_triggers(run, connection, name, policy.approved, outside, outcomes),
        confidence=policy.confidence,
        interval_method=METHOD,
        ratio_interval_method=RATIO_METHOD,
        multiple_testing=_breach_rule(measured, policy),
        segments=outcomes,
        harm=harm,
    )


def policy_reference(policy_file: PolicyFile, run: Run) -> PolicyReference:
    """Return which policy decides, and whether it is older than the run."""
    made = datetime.fromtimestamp(run.record.created_at, UTC).date()
    recorded = run.record.policy_sha256
    return PolicyReference(
        path=str(policy_file.path),
        name=policy_file.policy.name,
        date=policy_file.policy.date.isoformat(),
        sha256=policy_file.sha256,
        written_after_run=policy_file.policy.date > made,
        recorded_in_run=None if recorded is None else recorded == policy_file.sha256,
    )


def _chosen_candidate(connection: RunConnection, run: Run, candidate: str | None) -> Contender:
    found = candidates_of(run, connection)
    names = ", ".join(plain(one.candidate) for one in found)
    if candidate is None:
        quantized = [one for one in found if one.is_valid and one.kind != "bf16"]
        chosen = [one for one in quantized if one.kind == "effective"] or quantized
        if len(chosen) != 1:
            raise InputError(f"{run.path}: holds {names}; say which to check with --candidate NAME")
    else:
        chosen = [one for one in found if one.candidate == candidate]
        if not chosen:
            raise InputError(f"{run.path}: no candidate is called {plain(candidate)!r}; it holds {names}")
    if not chosen[0].is_valid:
        reason = plain(chosen[0].reason or "", 300)
        raise NoValidCandidateError(
            f"{run.path}: candidate {plain(chosen[0].candidate)} is invalid: {reason}"
        )
    return chosen[0]


def _q_values(
    segments: Sequence[ProtectedSegment], measured: Sequence[MeasuredSegment], policy: Policy
) -> list[dict[str, NDArray[np.float64]]]:
    """Return limit → q-value of each head, per segment, adjusted over every test of the check at once."""
    p_values = [
        (index, limit, p)
        for index, (segment, one) in enumerate(zip(segments, measured, strict=True))
        for limit, bound in segment.limits.given().items()
        if (p := _p_values(limit, bound, one, policy)) is not None
    ]
    found: list[dict[str, NDArray[np.float64]]] = [{} for _ in segments]
    if p_values:
        pooled = np.concatenate([p for _, _, p in p_values])
        q = q_values(pooled)
        starts = np.cumsum([0, *(p.size for _, _, p in p_values)])
        for (index, limit, p), start in zip(p_values, starts, strict=False):
            found[index][limit] = q[start : start + p.size]
    return found


def _p_values(limit: str, bound: float, one: MeasuredSegment, policy: Policy) -> NDArray[np.float64] | None:
    if limit in EVENT_OF_LIMIT:
        return exceedance_p_values(one.vectors.request_sums(EVENT_OF_LIMIT[limit]), bound)
    return value_p_values(limit, bound, one.values, policy)


def _breach_rule(measured: Sequence[MeasuredSegment], policy: Policy) -> str:
    by_estimate = any(one.values.is_online and len(one.values) for one in measured)
    return (
        f"{HYPOTHESIS}, or the ratio of values keeps it; {PROCEDURE}, at {policy.false_discovery_rate:g}"
        f"{'; but of values under a cache format by the estimate alone' if by_estimate else ''}"
    )


def _segment_outcome(
    segment: ProtectedSegment,
    measured: MeasuredSegment,
    q_of_limit: dict[str, NDArray[np.float64]],
    policy: Policy,
) -> SegmentOutcome:
    no_test = np.ones(len(measured.values))
    limits = tuple(
        decide_vectors(limit, bound, measured.vectors, q_of_limit[limit], policy)
        if limit in EVENT_OF_LIMIT
        else decide_values(limit, bound, measured.values, q_of_limit.get(limit, no_test), policy)
        for limit, bound in segment.limits.given().items()
    )
    missing = _missing_coverage(segment, measured)
    nonfinite = int(measured.vectors.columns["num_nonfinite"].sum())
    verdict = Verdict.breached if nonfinite else _segment_verdict(limits, missing)
    return SegmentOutcome(
        name=segment.name,
        workload=segment.workload,
        phase=segment.phase,
        positions=_inclusive(segment.positions),
        prompt_tokens=_inclusive(segment.prompt_tokens),
        output_tokens=_inclusive(segment.output_tokens),
        **asdict(measured.extent),
        min_requests=segment.coverage.requests,
        min_tokens=segment.coverage.tokens,
        num_nonfinite_vectors=nonfinite,
        verdict=verdict,
        reason=missing if verdict is Verdict.not_enough and missing else _reason(limits, verdict),
        limits=limits,
    )


def _missing_coverage(segment: ProtectedSegment, measured: MeasuredSegment) -> str | None:
    extent, needed = measured.extent, segment.coverage
    if extent.num_requests == 0:
        return "no request of this segment was captured"
    if extent.num_requests < needed.requests:
        return f"{extent.num_requests:,} requests, the policy asks for {needed.requests:,}"
    if extent.num_tokens < needed.tokens:
        return f"{extent.num_tokens:,} captured tokens, the policy asks for {needed.tokens:,}"
    # Ranks lose rows independently: a head can have fewer requests than the segment.
    if absent := measured.num_quantized - len(measured.vectors):
        return f"{absent:,} of {measured.num_quantized:,} heads have no captured row here"
    fewest = int(measured.vectors.columns["num_requests"].min(initial=extent.num_requests))
    if fewest < needed.requests:
        return f"a head has rows of {fewest:,} requests alone, the policy asks for {needed.requests:,}"
    return None


def _segment_verdict(limits: Sequence[LimitOutcome], missing: str | None) -> Verdict:
    """Return the verdict; on thin coverage only an interval can show a breach, an estimate cannot."""
    told = [one for one in limits if one.has_interval or missing is None]
    if any(one.verdict is Verdict.breached for one in told):
        return Verdict.breached
    if missing is not None or any(one.verdict is Verdict.not_enough for one in limits):
        return Verdict.not_enough
    return Verdict.within


def _reason(limits: Sequence[LimitOutcome], verdict: Verdict) -> str | None:
    return next((one.reason for one in limits if one.verdict is verdict and one.reason), None)


def _inclusive(bounds: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if bounds is None else (bounds[0], bounds[1] - 1)


def _overall(verdicts: Sequence[Verdict]) -> Verdict:
    if Verdict.breached in verdicts:
        return Verdict.breached
    if not verdicts or Verdict.not_enough in verdicts:
        return Verdict.not_enough
    return Verdict.within
