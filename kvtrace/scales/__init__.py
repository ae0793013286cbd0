"""Scale artifacts: read any format, and tell what a loader makes of it.

    from kvtrace.scales import load_artifact, resolve

    artifact = load_artifact("checkpoint/")  # ArtifactError: nothing there can be read
    resolved = resolve(artifact, num_layers=30, kv_heads_per_layer=3)  # also loader=, backend=, tp=
    resolved.require_valid()  # InvalidCandidateError: 0, NaN, inf, another model, a crash of the loader
    resolved.scale(layer, kv_head, "k")  # .value is a float, .origin is "file:key" or "unit: why"
    resolved.granularity, resolved.note  # as applied; what a reader must know, or None
    artifact.sha256, artifact.format, artifact.unmatched

    from kvtrace.report.scales.build import scales_report  # findings; needs torch, as calibrate does
    from kvtrace.calibration.calibrate import calibrate  # scales from traces
    from kvtrace.calibration.save import save_scales
    save_scales(directory, {(layer, "k"): (0.04,), (layer, "v"): (0.01,)}, model=config_json)  # bf16

For a trace: num_layers = trace.record.model.num_layers, kv_heads_per_layer = trace.record.model.num_kv_heads
(or one per layer), kv_head = the global id. `resolved.invalid_reason` is the text without the exception.
"""

from kvtrace.scales.artifact import ScaleArtifact
from kvtrace.scales.load import load_artifact
from kvtrace.scales.resolve import resolve
from kvtrace.scales.resolved import EffectiveScale, ResolvedScales

__all__ = ["EffectiveScale", "ResolvedScales", "ScaleArtifact", "load_artifact", "resolve"]
