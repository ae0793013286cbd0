"""Formats with one scale per tensor-parallel rank: old vLLM's and SGLang's JSON, TensorRT-LLM checkpoints.

Source: the schema checks of vLLM before 0.7 and of SGLang 0.5 (rank count = TP size, every layer present;
SGLang falls back to 1.0 on any error, and reads the file only where the cache dtype is fp8_e4m3), and
TensorRT-LLM's checkpoint format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, unit_layer
from kvtrace.scales.loaders.loader import LOADERS
from kvtrace.scales.resolved import EffectiveScale

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import LoaderSetup


def apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: LoaderSetup) -> LayerScales:
    """Return one layer's scales, each rank's heads with that rank's."""
    if problem := _problem(artifact, setup):
        found = unit_layer(layer, layout.num_heads, "the engine rejects the file")
        if setup.loader.defaults_on_error:
            text = f"{problem}: {setup.loader.title} logs an error and uses 1.0 everywhere"
            found.add("silent-default", text)
        else:
            found.add("crash", f"{problem}: the engine does not start")
        return found
    if setup.kv_cache_dtype in setup.loader.unread_for:
        found = unit_layer(layer, layout.num_heads, "the engine does not read the file")
        text = f"{setup.loader.title} reads the file for an fp8_e4m3 cache alone: 1.0 is used"
        found.add("silent-default", text)
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


def _problem(artifact: ScaleArtifact, setup: LoaderSetup) -> str | None:
    form, loader = artifact.format, setup.loader
    assert form.per_rank is not None
    if artifact.scheme.refused:
        return artifact.scheme.refused
    if loader.name not in form.per_rank.read_by:
        if len(form.per_rank.read_by) == 1:
            return f"a {LOADERS[form.native_loader].title} checkpoint is given to {loader.name}"
        return f"{loader.title} does not read {form.name}"
    ranks = sorted({s.rank for s in artifact.scales if s.rank is not None})
    if ranks != list(range(setup.tp)) and len(ranks) == setup.tp:
        return f"the artifact has scales for ranks {ranks} alone, and ranks are counted from 0"
    if ranks != list(range(setup.tp)):
        return f"the artifact has scales for ranks {ranks}, the engine runs {setup.tp}"
    if loader.needs_model_type and artifact.scheme.model_type is None:
        return "model_type is missing"
    if not form.per_rank.needs_every_layer:
        return None
    layers = [{s.layer for s in artifact.scales if s.rank == rank} for rank in ranks]
    if any(found != set(range(len(found))) or found != layers[0] for found in layers):
        return "some rank lacks layers"
    return None


def _scale_of(artifact: ScaleArtifact, layer: int, tensor: str, rank: int) -> StoredScale | None:
    """Return the rank's own K or V scale, else the merged one."""
    found = [s for s in artifact.scales if s.layer == layer and s.rank == rank and s.tensor in (tensor, "kv")]
    return min(found, key=lambda s: s.tensor == "kv", default=None)
