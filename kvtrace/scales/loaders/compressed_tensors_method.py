"""vLLM's compressed-tensors method: initialized to 1.0, nothing checked, per head sliced over ranks.

Source: vLLM 0.32, `CompressedTensorsKVCacheMethod`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, loaded
from kvtrace.scales.resolved import EffectiveScale

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import EngineSetup

_UNIT = "unit: none loaded"


def apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: EngineSetup) -> LayerScales:
    """Return one layer's scales; a missing one is 1.0, and 0, NaN or inf are loaded as they are."""
    found = LayerScales(layer)
    per_head = strategy_of(artifact) == "attn_head"
    missing = [tensor for tensor in ("k", "v") if loaded(artifact, layer, tensor) is None]
    if missing:
        found.add(
            "silent-default",
            f"no {' and no '.join(missing)} scale is loaded: vLLM uses 1.0 without a warning",
        )
    for tensor in ("k", "v", "q"):
        scale = loaded(artifact, layer, tensor)
        if scale is None:
            found.fill(tensor, 1.0, _UNIT, layout.num_heads)
        elif per_head:
            found.scales[tensor] = _per_head(found, scale, tensor, layout, _group_size(artifact, layout))
        else:
            if len(scale.values) != 1:
                found.add(
                    "crash",
                    f"the {tensor} scale has {len(scale.values)} values and the strategy is "
                    f"{artifact.scheme.strategy!r}: vLLM stops loading on a shape assertion",
                )
            found.fill(tensor, scale.values[0], scale.origin, layout.num_heads)
    if per_head and not honours_per_head(setup.backend):
        _collapse(found, layout, setup)
    return found


def strategy_of(artifact: ScaleArtifact) -> str:
    """Return the declared strategy; without a configuration, the one that the shapes show."""
    return artifact.scheme.strategy or artifact.granularity


def honours_per_head(backend: str | None) -> bool:
    """Whether an attention backend takes one scale per head: FlashAttention (3 and later) alone.

    None stands for a backend that does. vLLM on CUDA refuses to start others with per-head scales, the CPU
    and older versions use the maximum.
    """
    if backend is None:
        return True
    name = backend.upper().replace("_", "").replace("-", "")
    return name.startswith(("FLASHATTN", "FLASHATTENTION", "FA3", "FA4")) and "MLA" not in name


def _per_head(
    found: LayerScales, scale: StoredScale, tensor: str, layout: HeadLayout, group: int
) -> list[EffectiveScale]:
    values = list(scale.values)
    if tensor == "q" and group > 1 and len(values) % group == 0:
        values = [largest(values[i : i + group]) for i in range(0, len(values), group)]
    heads = [EffectiveScale(math.nan, scale.origin)] * layout.num_heads
    for rank in range(layout.tp):
        ids = layout.heads_of(rank)
        part = values[ids.start : ids.stop]
        if len(part) == 1:  # torch's copy broadcasts it
            part = part * len(ids)
        if len(part) != len(ids):
            found.add(
                "crash",
                f"the {tensor} scale has {len(values)} values for {layout.num_heads} KV heads: "
                f"rank {rank} of {layout.tp} finds {len(part)} for its {len(ids)}, and vLLM stops loading",
            )
            continue
        for head, value in zip(ids, part, strict=True):
            heads[head] = EffectiveScale(value, scale.origin)
    return heads


def _collapse(found: LayerScales, layout: HeadLayout, setup: EngineSetup) -> None:
    before = {tensor: [s.value for s in heads] for tensor, heads in found.scales.items()}
    for tensor, heads in found.scales.items():
        collapsed = list(heads)
        for rank in range(layout.tp):
            ids = layout.heads_of(rank)
            value = largest([heads[head].value for head in ids])
            for head in ids:
                collapsed[head] = EffectiveScale(value, heads[head].origin)
        found.scales[tensor] = collapsed
    if any([s.value for s in heads] != before[tensor] for tensor, heads in found.scales.items()):
        found.add(
            "collapsed",
            f"backend {setup.backend} takes one scale: per-head values become the maximum over each rank's "
            "heads",
        )


def _group_size(artifact: ScaleArtifact, layout: HeadLayout) -> int:
    heads = artifact.model.num_attention_heads
    return max(1, heads // layout.num_heads) if heads else 1


def largest(values: list[float]) -> float:
    """Return the maximum as torch does: NaN wins."""
    return math.nan if any(math.isnan(v) for v in values) else max(values)
