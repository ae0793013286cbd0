"""Weights, tokenizer or chat template are not those of the calibration, or not the other checkpoint's; or the
scales are not the manifest's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Severity

_DIGESTS: Final[tuple[tuple[str, str, Severity], ...]] = (
    ("weights_digest", "weights differ", "error"),
    ("tokenizer_digest", "tokenizer differs", "warning"),
    ("chat_template_digest", "chat template differs", "warning"),
)


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield one finding for each trigger of recalibration that fired; changed weights have a rule."""
    if context.weights is not None:
        for what in context.weights.other_text:
            yield Finding(
                id="stale-artifact",
                severity="warning",
                message=f"the {what} differs from that of {plain(context.weights.against, 200)}",
                action="Take scales that were calibrated with what is served: other tokens, other ranges.",
                evidence=({"what": what, "against": context.weights.against},),
            )
    if context.manifest is None:
        return
    if context.manifest.scales_sha256 and context.manifest.scales_sha256 != context.artifact.sha256:
        yield Finding(
            id="stale-artifact",
            severity="error",
            message="the scales are not those that kvtrace.json describes: they were changed after the "
            "calibration",
            action="Take scales and manifest from the same calibration.",
            evidence=({"manifest": context.manifest.scales_sha256, "found": context.artifact.sha256},),
        )
    if context.observed is None:
        return
    now = context.observed.trace.record.model
    for field, differs, severity in _DIGESTS:
        then_digest, now_digest = getattr(context.manifest.model, field), getattr(now, field)
        if then_digest and now_digest and then_digest != now_digest:
            yield Finding(
                id="stale-artifact",
                severity=severity,
                message=f"the traced model's {differs} from the calibrated one's",
                action="Calibrate again on this model: the old ranges say nothing about it until shown "
                "otherwise.",
                evidence=({"what": field, "calibrated": then_digest, "traced": now_digest},),
            )
    then = context.manifest.model.max_model_len
    if then is not None and now.max_model_len > then:
        yield Finding(
            id="stale-artifact",
            severity="warning",
            message=f"the engine admits {now.max_model_len:,} positions; when it was calibrated, {then:,}",
            action="Calibrate on requests as long as those now admitted, or admit no more than before.",
            evidence=({"what": "supported_length", "calibrated": then, "traced": now.max_model_len},),
        )


RULE: Final = ArtifactRule(
    id="stale-artifact",
    headline="The scales are not of this model's state",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    recalls_approval=True,
    mended_by="recalibrate",
    check=check,
    invalid=(
        ArtifactExample(manifest={"scales_sha256": "0" * 64}),
        ArtifactExample(amax=AMAX, manifest={"max_model_len": 4096}),
    ),
    valid=(ArtifactExample(amax=AMAX, manifest={}),),
)
