"""Positions in the trace beyond the length that the artifact was calibrated at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where values beyond the calibrated length clip; a note where none do.

    A note too where that length is not known.
    """
    if context.observed is None or not context.artifact.layers:
        return
    tokens = context.observed.trace.tokens
    longest = int(tokens.position.max())
    if context.calibrated_length is None:
        yield Finding(
            id="short-calibration",
            severity="note",
            message="the artifact does not say at which length it was calibrated; the trace has positions "
            f"up to {longest:,}",
            action="Say it with --calibrated-at-length N, and keep it with the artifact.",
            evidence=({"max_position": longest},),
        )
        return
    num_beyond = int((tokens.position >= context.calibrated_length).sum())
    if not num_beyond:
        return
    clipped = [
        unit
        for unit, m in context.observed.units_beyond(context.calibrated_length).items()
        if (value := context.usable(unit)) and m.amax > context.clip_ratio * E4M3FN.max_value * value
    ]
    what = f"there {len(clipped)} ranges are clipped" if clipped else "nothing is clipped there in this trace"
    yield Finding(
        id="short-calibration",
        severity="warning" if clipped else "note",
        message=f"{num_beyond:,} of {len(tokens):,} sampled tokens lie beyond the "
        "calibrated "
        f"{context.calibrated_length:,} positions (up to {longest:,}); {what}",
        action="Calibrate on requests as long as those served.",
        layers=tuple(sorted({unit[0] for unit in clipped})),
        evidence=numbers(
            calibrated_length=context.calibrated_length,
            max_position=longest,
            num_tokens=len(tokens),
            num_tokens_beyond=num_beyond,
            num_units_clipped_beyond=len(clipped),
        ),
    )


RULE: Final = ArtifactRule(
    id="short-calibration",
    headline="The calibration was shorter than this traffic",
    role="circumstance",
    follows_loss=True,
    accounts_for=lambda _, loss, __: loss.where is None or loss.where.kind == "position",
    tier=Tier.circumstance,
    recalls_approval=True,
    mended_by="recalibrate",
    check=check,
    invalid=(
        ArtifactExample(amax=AMAX, calibrated_at_length=2),
        # A note: the length is not known.
        ArtifactExample(amax=AMAX),
    ),
    valid=(ArtifactExample(amax=AMAX, calibrated_at_length=4),),
)
