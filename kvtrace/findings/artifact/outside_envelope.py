"""What the trace holds and the calibration never saw: workloads, phases, lengths, another mix."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent
from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.calibration.manifest import ManifestRows
    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.trace.reader import Trace

_MIX_NOTE: Final = 0.2
_MIX_WARNING: Final = 0.5
"""Half the sum of absolute differences between workload shares: 0 for the same mix, 1 for no workload in
common."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a finding for each way in which the trace leaves the manifest's envelope; positions have a rule.

    What lies outside is a note where nothing is lost by clipping.
    """
    if context.observed is None or context.manifest is None:
        return
    trace, covered = context.observed.trace, context.manifest.dataset.calibration
    for found in (*_unseen(trace, covered), *_longer(trace, covered), *_other_mix(trace, covered)):
        yield found if context.loses_by_clipping else replace(found, severity="note")


def _unseen(trace: Trace, covered: ManifestRows) -> Iterator[Finding]:
    known = {cell.workload for cell in covered.cells}
    tokens_of = _tokens_of_workload(trace)
    unseen = sorted(tokens_of.keys() - known)
    if unseen:
        outside = sum(tokens_of[name] for name in unseen)
        yield Finding(
            id="outside-envelope",
            severity="warning",
            message="workloads that were not calibrated on: "
            f"{', '.join(plain(name) for name in unseen[:10])}",
            action="Calibrate on them as well, or evaluate them apart before serving them.",
            evidence=numbers(
                what="workload",
                workloads=[plain(name, 200) for name in unseen],
                num_tokens_outside=outside,
                num_tokens=sum(tokens_of.values()),
            ),
        )


def _longer(trace: Trace, covered: ManifestRows) -> Iterator[Finding]:
    sampled = [trace.requests[request] for request in set(trace.tokens.request.tolist())]
    for what, limit, found in (
        ("prompt_tokens", covered.max_prompt_tokens, [r.prompt_tokens for r in sampled]),
        ("output_tokens", covered.max_output_tokens, [r.output_tokens for r in sampled]),
    ):
        beyond = sum(length > limit for length in found)
        if beyond:
            yield Finding(
                id="outside-envelope",
                severity="warning",
                message=f"{beyond:,} of {len(found):,} requests have more {what.replace('_', ' ')} than any "
                "that was "
                f"calibrated on (up to {max(found):,}, calibrated {limit:,})",
                action="Calibrate on requests as long as those served.",
                evidence=numbers(
                    what=what,
                    calibrated_max=limit,
                    trace_max=max(found),
                    num_requests_beyond=beyond,
                    num_requests=len(found),
                ),
            )


def _other_mix(trace: Trace, covered: ManifestRows) -> Iterator[Finding]:
    then: Counter[str] = Counter()
    for cell in covered.cells:
        then[cell.workload] += cell.num_tokens
    now = _tokens_of_workload(trace)
    distance = sum(
        abs(then[name] / max(then.total(), 1) - now[name] / max(now.total(), 1)) for name in then | now
    )
    distance /= 2
    if distance >= _MIX_NOTE:
        yield Finding(
            id="outside-envelope",
            severity="warning" if distance >= _MIX_WARNING else "note",
            message="the mix of workloads differs from the calibration's by "
            f"{percent(distance)} of the tokens",
            action="Read each workload's own numbers; calibrate again if the new mix is here to stay.",
            evidence=({"what": "traffic_mix", "total_variation": distance},),
        )


def _tokens_of_workload(trace: Trace) -> Counter[str]:
    found: Counter[str] = Counter()
    for request, count in Counter(trace.tokens.request.tolist()).items():
        found[trace.requests[request].workload] += count
    return found


RULE: Final = ArtifactRule(
    id="outside-envelope",
    headline="This traffic is not what was calibrated on",
    role="circumstance",
    follows_loss=True,
    accounts_for=lambda _, loss, __: loss.where is None or loss.where.kind != "phase",
    tier=Tier.circumstance,
    recalls_approval=True,
    mended_by="recalibrate",
    check=check,
    invalid=(
        ArtifactExample(amax=AMAX, manifest={"workload": "code"}),
        ArtifactExample(amax=AMAX, manifest={"max_prompt_tokens": 3}),
    ),
    valid=(
        ArtifactExample(amax=AMAX, manifest={}),
        ArtifactExample(amax=AMAX),
    ),
)
