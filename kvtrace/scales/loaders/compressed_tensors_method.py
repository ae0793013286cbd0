"""vLLM's compressed-tensors method: initialized to 1.0, nothing checked, per head sliced over ranks.

Source: vLLM 0.32, `CompressedTensorsKVCacheMethod`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.numerics.backends import honours_per_head
from kvtrace.scales.loaders.contract import NONE_LOADED, HeadLayout, LayerScales, loaded
from kvtrace.scales.resolved import EffectiveScale, Note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import LoaderSetup

_METHOD: Final = "compressed-tensors"


def serves(quant_method: str) -> bool:
    """Whether this is vLLM's method of that name."""
    return quant_method == _METHOD


def apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: LoaderSetup) -> LayerScales:
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
            found.fill_default(tensor, NONE_LOADED, layout.num_heads)
        elif per_head:
            found.scales[tensor] = _per_head(found, scale, tensor, layout, _group_size(artifact, layout))
        else:
            if len(scale.values) != 1:
                found.add(
                    "crash",
                    f"the {tensor} scale has {len(scale.values)} values and the strategy is "
                    f"{artifact.scheme.strategy!r}: vLLM stops loading on a shape assertion",
                )
            found.fill(tensor, scale.values[0], scale, layout.num_heads)
    if per_head and not honours_per_head(setup.backend):
        _collapse(found, layout, setup)
    return found


def scheme_notes(artifact: ScaleArtifact) -> Iterator[Note]:
    """Yield what this method does with the declared `kv_cache_scheme`."""
    scheme = artifact.scheme
    if not scheme.has_kv_scheme:
        yield Note(
            "information",
            "config.json declares no kv_cache_scheme: vLLM uses FP8 only with --kv-cache-dtype fp8",
        )
        return
    if scheme.num_bits != 8 or scheme.type != "float":
        yield Note(
            "crash",
            f"kv_cache_scheme is {scheme.type!r} with {scheme.num_bits} bits; vLLM takes 8-bit floats only",
        )
    if scheme.strategy not in ("tensor", "attn_head"):
        yield Note(
            "crash", f"kv_cache_scheme has strategy {scheme.strategy!r}; vLLM takes tensor and attn_head"
        )
    if not scheme.symmetric:
        yield Note(
            "crash", f"kv_cache_scheme has symmetric {scheme.symmetric}; vLLM takes symmetric scales only"
        )
    if scheme.dynamic and not artifact.layers:
        yield Note(
            "silent-default", "kv_cache_scheme is dynamic: vLLM writes FP8 all the same, every scale 1.0"
        )


def strategy_of(artifact: ScaleArtifact) -> str:
    """Return the declared strategy; without a configuration, the one that the shapes show."""
    return artifact.scheme.strategy or artifact.granularity


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


def _collapse(found: LayerScales, layout: HeadLayout, setup: LoaderSetup) -> None:
    before = {tensor: [s.value for s in heads] for tensor, heads in found.scales.items()}
    for tensor, heads in found.scales.items():
        collapsed = list(heads)
        for rank in range(layout.tp):
            ids = layout.heads_of(rank)
            value = largest([heads[head].value for head in ids])
            for head in ids:
                collapsed[head] = replace(heads[head], value=value)
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
