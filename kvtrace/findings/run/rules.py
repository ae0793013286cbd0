"""The rules over a run, in the order in which they are asked; the last one asks what the others found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.run import (
    artifact_faults,
    backend_facts,
    clipping,
    constant_factor,
    coverage,
    drift,
    e5m2_rounding,
    no_scale_helps,
    nonfinite,
    not_the_scales,
    ordinary_channels,
    outlier_head,
    rounding_floor,
    scales_not_loaded,
    too_wide,
)

if TYPE_CHECKING:
    from kvtrace.findings.run.example import RunRule

RULES: Final[tuple[RunRule, ...]] = (
    scales_not_loaded.RULE,
    artifact_faults.RULE,
    nonfinite.RULE,
    drift.WORKLOAD,
    drift.PHASE,
    drift.POSITION,
    drift.OUTPUT_LENGTH,
    constant_factor.RULE,
    outlier_head.RULE,
    too_wide.RULE,
    no_scale_helps.RULE,
    ordinary_channels.RULE,
    clipping.K_CLIPS,
    clipping.V_CLIPS,
    coverage.RULE,
    e5m2_rounding.RULE,
    backend_facts.E5M2,
    backend_facts.OUTPUT,
    rounding_floor.RULE,
    not_the_scales.RULE,
)
