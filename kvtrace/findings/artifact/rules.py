"""The rules over an artifact, in the order in which they are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    neighbour_layer,
    not_a_kv_scale,
    nvfp4_global,
    other_format,
    outside_envelope,
    per_head_collapsed,
    pre_rope_keys,
    rank_scales_everywhere,
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

if TYPE_CHECKING:
    from kvtrace.findings.artifact.example import ArtifactRule

RULES: Final[tuple[ArtifactRule, ...]] = (
    wrong_model.RULE,
    engine_crash.RULE,
    other_format.RULE,
    unusable_values.RULE,
    scales_not_loaded.RULE,
    silent_default.RULE,
    missing_layers.RULE,
    unmatched_names.RULE,
    per_head_collapsed.RULE,
    rank_scales_everywhere.RULE,
    not_a_kv_scale.RULE,
    neighbour_layer.RULE,
    inverse_scales.RULE,
    kv_swapped.RULE,
    heads_permuted.RULE,
    clipping.RULE,
    nvfp4_global.NARROW,
    nvfp4_global.WIDE,
    nvfp4_global.OF_FP8,
    pre_rope_keys.RULE,
    ema_observer.RULE,
    short_calibration.RULE,
    outside_envelope.RULE,
    stale_artifact.RULE,
    weights_changed.CHANGED,
    weights_changed.EQUAL,
    too_wide.RULE,
    merged_kv.RULE,
    constant_scales.RULE,
    bf16_rounding.RULE,
)
