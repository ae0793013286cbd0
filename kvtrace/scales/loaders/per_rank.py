"""Formats with one scale per tensor-parallel rank: old vLLM's and SGLang's JSON, TensorRT-LLM checkpoints.

Source: the schema checks of vLLM before 0.7 and of SGLang 0.5 (rank count = TP size, every layer present;
SGLang falls back to 1.0 on any error, and reads the file only where the cache dtype is fp8_e4m3), and
TensorRT-LLM's checkpoint format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, unit_layer
from kvtrace.scales.resolved import EffectiveScale

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import EngineSetup


def apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: EngineSetup) -> LayerScales:
    """Return one layer's scales, each rank's heads with that rank's."""
    if problem := _problem(artifact, setup):
        found = unit_layer(layer, layout.num_heads, "the engine rejects the file")
        if setup.engine == "sglang":
            found.add("silent-default", f"{problem}: SGLang logs an error and uses 1.0 everywhere")
        else:
            found.add("crash", f"{problem}: the engine does not start")
        return found
    if setup.engine == "sglang" and setup.kv_cache_dtype == "fp8_e5m2":
        found = unit_layer(layer, layout.num_heads, "the engine does not read the file")
        found.add("silent-default", "SGLang reads the file for an fp8_e4m3 cache alone: 1.0 is used")
        return found
    found = unit_layer(layer, layout.num_heads, "none stored")
    for rank in range(setup.tp):
        for tensor in ("k", "v"):
            scale = _scale_of(artifact, layer, tensor, rank)
            if scale is None:
                found.add("silent-default", f"rank {rank} has no {tensor} scale: 1.0 is used")
                continue
            for head in layout.heads_of(rank):
                found.scales[tensor][head] = EffectiveScale(scale.values[0], scale.origin)
    return found


def _problem(artifact: ScaleArtifact, setup: EngineSetup) -> str | None:
    if artifact.format == "tensorrt-llm" and setup.engine != "tensorrt-llm":
        return f"a TensorRT-LLM checkpoint is given to {setup.engine}"
    if artifact.format != "tensorrt-llm" and setup.engine == "tensorrt-llm":
        return f"TensorRT-LLM does not read {artifact.format}"
    ranks = sorted({s.rank for s in artifact.scales if s.rank is not None})
    if ranks != list(range(setup.tp)):
        return f"the artifact has scales for ranks {ranks}, the engine runs {setup.tp}"
    if setup.engine == "sglang" and artifact.scheme.model_type is None:
        return "model_type is missing"
    if artifact.format == "tensorrt-llm":
        return None
    layers = [{s.layer for s in artifact.scales if s.rank == rank} for rank in ranks]
    if any(found != set(range(len(found))) or found != layers[0] for found in layers):
        return "some rank lacks layers"
    return None


def _scale_of(artifact: ScaleArtifact, layer: int, tensor: str, rank: int) -> StoredScale | None:
    """Return the rank's own K or V scale, else the merged one."""
    found = [s for s in artifact.scales if s.layer == layer and s.rank == rank and s.tensor in (tensor, "kv")]
    return min(found, key=lambda s: s.tensor == "kv", default=None)
