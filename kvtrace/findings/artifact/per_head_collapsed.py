"""Scales per head that the engine does not take: it makes one of them, their maximum, or does not start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import AMAX_PER_HEAD, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.artifact.scales_not_loaded import (
    examples_of,
    is_same,
    largest_of_rank,
    live_scales,
)
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier
from kvtrace.numerics.backends import another_takes_per_head, starts_per_head
from kvtrace.scales.loaders.loader import VLLM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.calibration.magnitudes import Group
    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Severity


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where live scales are the maximum over heads, or the given backend would make them
    so.
    """
    live = _collapsed(context)
    notes = context.resolved.notes_of("collapsed")
    if not live and not notes:
        return
    layers = sorted({layer for layer, _, _ in live}) or sorted({n for note in notes for n in note.layers})
    setup = context.resolved.setup
    # What a traced engine did is done: an older vLLM started.
    if not live and setup.loader is VLLM and starts_per_head(setup.backend or "") is False:
        severity: Severity = "error"
        message = (
            f"backend {setup.backend} takes no scale per head: from 0.28 on vLLM does not start with both on "
            "a GPU; before, the maximum over each rank's heads was used, which is shown here"
        )
        action = "Use FlashAttention 3 or later, or scales per tensor."
    else:
        severity = "warning"
        where = "the traced engine used the maximum over heads" if live else notes[0].text
        message = f"{where}: narrow heads get a wider scale than shipped"
        action = (
            "Use FlashAttention 3 or later, or compare with a per-tensor artifact: this is one in effect."
            if another_takes_per_head(setup.backend)
            else "Calibrate per tensor: this platform has no backend that takes scales per head."
        )
    yield Finding(
        id="per-head-collapsed",
        severity=severity,
        message=message,
        action=action,
        layers=tuple(layers),
        is_about_what_ran=bool(live),
        evidence=numbers(
            num_heads_collapsed=len(live),
            backend=setup.backend,
            examples=examples_of(live),
        ),
    )


def _collapsed(context: AuditContext) -> dict[Group, tuple[float | None, float]]:
    """Return (shipped, live) of heads that got another's scale; a backend collapses all layers or none."""
    in_use = {group: pair for group, pair in live_scales(context).items() if pair[0] is not None}
    if context.is_what_if or not all(
        is_same(effective, largest_of_rank(context, group)) for group, (_, effective) in in_use.items()
    ):
        return {}
    return {
        group: (shipped, effective)
        for group, (shipped, effective) in in_use.items()
        if shipped is not None and not is_same(shipped, effective)
    }


RULE: Final = ArtifactRule(
    id="per-head-collapsed",
    headline="The engine uses one scale for all heads of a layer",
    about="format",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(
        ArtifactExample(scales=covering(AMAX_PER_HEAD), backend="CPU_ATTN"),
        ArtifactExample(scales=covering(AMAX_PER_HEAD), backend="FLASHINFER"),
    ),
    valid=(
        ArtifactExample(scales=covering(AMAX_PER_HEAD), backend="FLASH_ATTN"),
        ArtifactExample(backend="CPU_ATTN"),
    ),
)
