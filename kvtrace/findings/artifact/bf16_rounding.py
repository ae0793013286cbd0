"""Scales stored in bfloat16: up to 0.4 % off, which moves the largest values just out of range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import percent
from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a note where scales are bfloat16; with a trace, how many ranges end just beyond the covered
    one.
    """
    stored = [s for s in context.artifact.scales if s.tensor in ("k", "v", "kv")]
    in_bf16 = [s for s in stored if s.dtype == "BF16"]
    if not in_bf16:
        return
    clip_ratio = context.clip_ratio
    just_beyond = [r for r in context.ratios.values() if 1 < r < clip_ratio]
    message = (
        f"{len(in_bf16)} of {len(stored)} scales are stored in bfloat16, up to 0.4 % from what was computed"
    )
    if just_beyond:
        message += (
            f"; {len(just_beyond)} ranges end up to {percent(max(just_beyond) - 1)} beyond, where nothing is "
            "clipped"
        )
    as_written = f" as {context.observed.engine} writes it" if context.observed else ""
    yield Finding(
        id="bf16-rounding",
        severity="note",
        message=message,
        action=f"Nothing: e4m3fn{as_written} clips from {(clip_ratio - 1) * 100:.1f} % beyond its range on. "
        "A headroom of 1.004 rounds up if you prefer.",
        evidence=numbers(
            num_bf16=len(in_bf16),
            num_just_beyond=len(just_beyond),
            max_relative_loss=2.0**-8,
            clips_from_observed_over_covered=clip_ratio,
            max_observed_over_covered=max(context.ratios.values(), default=None),
        ),
    )


RULE: Final = ArtifactRule(
    id="bf16-rounding",
    role="note",
    tier=Tier.stored_rounding,
    check=check,
    invalid=(ArtifactExample(stored_as="bfloat16"),),
    valid=(ArtifactExample(),),
)
