"""One rule a file. Each has `check(context)`, which yields findings; `RULES` is the order in which they are
asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.findings.artifact import (
    bf16_rounding,
    clipping,
    constant_scales,
    ema_observer,
    engine_crash,
    heads_permuted,
    inverse_scales,
    kv_swapped,
    merged_kv,
    missing_layers,
    outside_envelope,
    per_head_collapsed,
    pre_rope_keys,
    scales_not_loaded,
    short_calibration,
    silent_default,
    stale_artifact,
    too_wide,
    unmatched_names,
    unusable_values,
    weights_changed,
    wrong_model,
)
from kvtrace.findings.artifact.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.findings.artifact.context import AuditContext

RULES: tuple[Callable[[AuditContext], Iterator[Finding]], ...] = (
    wrong_model.check,
    engine_crash.check,
    unusable_values.check,
    scales_not_loaded.check,
    silent_default.check,
    missing_layers.check,
    unmatched_names.check,
    per_head_collapsed.check,
    inverse_scales.check,
    kv_swapped.check,
    heads_permuted.check,
    clipping.check,
    pre_rope_keys.check,
    ema_observer.check,
    short_calibration.check,
    outside_envelope.check,
    stale_artifact.check,
    weights_changed.check,
    too_wide.check,
    merged_kv.check,
    constant_scales.check,
    bf16_rounding.check,
)


MEASURED_BY_A_RUN: tuple[Callable[[AuditContext], Iterator[Finding]], ...] = (clipping.check, too_wide.check)
"""Rules whose numbers a run holds anyway, as the engine would apply the scales: an audit within a replay does
without them."""


def audit(
    context: AuditContext, rules: tuple[Callable[[AuditContext], Iterator[Finding]], ...] = RULES
) -> list[Finding]:
    """Return the rules' findings, errors first, in the rules' order."""
    findings = [finding for rule in rules for finding in rule(context)]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
