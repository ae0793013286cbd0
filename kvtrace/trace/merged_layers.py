"""Layers over all tensor-parallel ranks: what each rank says of its heads, put together and held together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import IntegrityError
from kvtrace.plain_text import plain
from kvtrace.trace.cache_dtypes import CacheKind, cache_kind
from kvtrace.trace.format import RANK_FILE, LayerRecord
from kvtrace.trace.requests import COPY_OR_REPAIR

if TYPE_CHECKING:
    from kvtrace.trace.format import StoredDtype
    from kvtrace.trace.store import RankStore

_ALIKE: Final = ("name", "captured", "head_dim_k", "head_dim_v", "dtype", "backend", "kv_cache_dtype")
"""What all ranks say alike of a layer: a reader takes the first one's word."""


@dataclass(frozen=True, slots=True)
class MergedLayer:
    """One layer over all ranks."""

    index: int
    name: str
    kv_heads: tuple[int, ...]
    """Global ids, ascending."""
    head_dim_k: int
    head_dim_v: int
    dtype: StoredDtype
    backend: str
    kv_cache_dtype: str
    sliding_window: int | None
    k_scale: tuple[float, ...]
    """Effective scale of each head of `kv_heads`."""
    v_scale: tuple[float, ...]

    @property
    def cache_kind(self) -> CacheKind:
        """Return whether the engine wrote its K and V as static FP8, unquantized or otherwise."""
        return cache_kind(self.kv_cache_dtype)


def merge_layers(ranks: tuple[RankStore, ...]) -> dict[int, MergedLayer]:
    """Return the captured layers by index, each with the heads and scales of all ranks.

    Raises IntegrityError: two ranks say different things of one layer, or share a part of its heads.
    """
    per_layer: dict[int, list[LayerRecord]] = {}
    seen: dict[int, tuple[RankStore, LayerRecord]] = {}
    groups: dict[tuple[int, int], tuple[int, ...]] = {}
    for store in ranks:
        for layer in store.rank.layers:
            first = seen.setdefault(layer.index, (store, layer))
            if differing := [name for name in _ALIKE if getattr(layer, name) != getattr(first[1], name)]:
                raise IntegrityError(
                    f"{store.path / RANK_FILE}: layer {layer.index} has another {differing[0]} than in "
                    f"{first[0].path.name}: {plain(str(getattr(layer, differing[0])))}, not "
                    f"{plain(str(getattr(first[1], differing[0])))}. {COPY_OR_REPAIR}"
                )
            for head in layer.kv_heads:
                shared = groups.setdefault((layer.index, head), layer.kv_heads)
                if shared != layer.kv_heads:
                    raise IntegrityError(
                        f"{store.path / RANK_FILE}: layer {layer.index} shares KV head {head} with another "
                        f"rank, and not all its heads. {COPY_OR_REPAIR}"
                    )
            if layer.captured:
                per_layer.setdefault(layer.index, []).append(layer)
    return {index: _merge_layer(parts) for index, parts in sorted(per_layer.items())}


def _merge_layer(parts: list[LayerRecord]) -> MergedLayer:
    k_scale: dict[int, float] = {}
    v_scale: dict[int, float] = {}
    for part in parts:
        k_scale |= zip(part.kv_heads, _per_head(part.k_scale, part), strict=True)
        v_scale |= zip(part.kv_heads, _per_head(part.v_scale, part), strict=True)
    heads, first = tuple(sorted(k_scale)), parts[0]
    return MergedLayer(
        index=first.index,
        name=first.name,
        kv_heads=heads,
        head_dim_k=first.head_dim_k,
        head_dim_v=first.head_dim_v,
        dtype=first.dtype,
        backend=first.backend,
        kv_cache_dtype=first.kv_cache_dtype,
        sliding_window=first.sliding_window,
        k_scale=tuple(k_scale[head] for head in heads),
        v_scale=tuple(v_scale[head] for head in heads),
    )


def _per_head(scale: tuple[float, ...], layer: LayerRecord) -> tuple[float, ...]:
    return scale * len(layer.kv_heads) if len(scale) == 1 else scale
