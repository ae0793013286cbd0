"""The stores that are there for attention: opened, and held against the ranks' own and against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import IntegrityError
from kvtrace.trace.format import RANK_FILE, rank_directory
from kvtrace.trace.requests import COPY_OR_REPAIR
from kvtrace.trace.store import RankStore, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvtrace.trace.attention_format import AttentionRecord
    from kvtrace.trace.format import LayerRecord, StoreKind, TraceRecord
    from kvtrace.trace.merged_layers import MergedLayer

_SAME_IN_CONTEXT: Final = ("index", "captured", "kv_heads", "head_dim_k", "head_dim_v", "dtype")

_SAME_ON_ALL_RANKS: Final = ("softmax_scale", "soft_cap", "query_is_fp8", "not_replayable")


@dataclass(frozen=True, slots=True)
class QueryStores:
    """The stores that a capture of queries leaves beside `rank-N.zarr`; none where it took no queries."""

    context: tuple[RankStore, ...] = ()
    """K and V at positions off the sampling grid, by rank."""
    queries: tuple[RankStore, ...] = ()
    """Q, and the engine's output where it is there, by rank."""

    def __bool__(self) -> bool:
        """Return whether queries were captured."""
        return bool(self.queries)

    def residual_weight(self, layer: int) -> float | None:
        """Return the mean of ‖W_O o‖² / ‖h‖² in one layer; None: it was not measured.

        h is the residual stream after the layer's attention. Every tensor-parallel rank sees the whole of
        both, so the first that measured them speaks for all.
        """
        found = (one for store in self.queries for one in store.commit.residual if one.layer == layer)
        return next((one.sum_ratio / one.num_queries for one in found), None)

    @property
    def all(self) -> tuple[RankStore, ...]:
        """Return both kinds."""
        return self.context + self.queries


def open_query_stores(
    path: Path, record: TraceRecord, ranks: tuple[RankStore, ...], layers: Mapping[int, MergedLayer]
) -> QueryStores:
    """Open what lies beside the ranks' stores in the trace `path`.

    Raises IntegrityError: a store is damaged or missing though another rank has it, is of another trace, or
    says of a layer what its rank, or another rank, does not.
    """
    found: dict[StoreKind, tuple[RankStore, ...]] = {}
    kinds: tuple[StoreKind, ...] = ("context", "queries")
    for kind in kinds:
        places = {store.rank.rank: path / rank_directory(store.rank.rank, kind) for store in ranks}
        found[kind] = tuple(open_store(place) for place in places.values() if place.is_dir())
        for store in found[kind]:
            if store.rank.trace_id != record.trace_id:
                raise IntegrityError(
                    f"{store.path}: belongs to trace {store.rank.trace_id}, expected {record.trace_id}. "
                    f"{COPY_OR_REPAIR}"
                )
    stores = QueryStores(found["context"], found["queries"])
    _check_ranks(path, ranks, stores)
    _check_context(ranks, stores)
    _check_queries(stores, layers)
    return stores


def _check_ranks(path: Path, ranks: tuple[RankStore, ...], stores: QueryStores) -> None:
    """Every rank has a store of queries or none has; one of context goes with K and V of its own."""
    if not stores.all:
        return
    with_kv = {store.rank.rank for store in ranks if any(layer.captured for layer in store.rank.layers)}
    every: dict[StoreKind, set[int]] = {"context": with_kv, "queries": {store.rank.rank for store in ranks}}
    for kind, expected in every.items():
        have = {store.rank.rank for store in stores.all if store.rank.holds == kind}
        if missing := sorted(expected - have):
            raise IntegrityError(
                f"{path / rank_directory(missing[0], kind)}: is missing, though the capture took queries. "
                f"{COPY_OR_REPAIR}"
            )


def _check_context(ranks: tuple[RankStore, ...], stores: QueryStores) -> None:
    of_rank = {store.rank.rank: store.rank for store in ranks}
    for store in stores.context:
        if _shapes(store.rank.layers) != _shapes(of_rank[store.rank.rank].layers):
            raise IntegrityError(
                f"{store.path / RANK_FILE}: has other layers than {rank_directory(store.rank.rank)}. "
                f"{COPY_OR_REPAIR}"
            )


def _shapes(layers: tuple[LayerRecord, ...]) -> list[tuple[object, ...]]:
    return [tuple(getattr(layer, name) for name in _SAME_IN_CONTEXT) for layer in layers]


def _check_queries(stores: QueryStores, layers: Mapping[int, MergedLayer]) -> None:
    owner: dict[tuple[int, int], RankStore] = {}
    first: dict[int, AttentionRecord] = {}
    for store in stores.queries:
        if store.rank.has_outputs != stores.queries[0].rank.has_outputs:
            raise IntegrityError(
                f"{store.path / RANK_FILE}: says of outputs what {stores.queries[0].path.name} does not. "
                f"{COPY_OR_REPAIR}"
            )
        for layer in store.rank.layers:
            if not layer.captured or layer.attention is None:
                continue
            problem = _problem(layer, layers.get(layer.index))
            known = first.setdefault(layer.index, layer.attention)
            for name in _SAME_ON_ALL_RANKS:
                if getattr(layer.attention, name) != getattr(known, name):
                    problem = problem or f"has another {name} than on another rank"
            if (layer.attention.sinks is None) != (known.sinks is None):
                problem = problem or "has sinks on some ranks alone"
            for head in layer.attention.query_heads:
                other = owner.setdefault((layer.index, head), store)
                if other is not store:
                    problem = problem or f"has query head {head}, which {other.path.name} has too"
            if problem:
                raise IntegrityError(
                    f"{store.path / RANK_FILE}: layer {layer.index} {problem}. {COPY_OR_REPAIR}"
                )


def _problem(layer: LayerRecord, merged: MergedLayer | None) -> str | None:
    """Return what is wrong with a layer of queries, or None. merged: K and V over all ranks."""
    assert layer.attention is not None, "RankRecord has checked it"
    if merged is None:
        return "has queries and no K and V"
    if layer.sliding_window is not None and layer.sliding_window < 1:
        return f"has a sliding_window of {layer.sliding_window}, expected at least 1"
    for name in ("head_dim_k", "head_dim_v", "dtype", "sliding_window"):
        if getattr(layer, name) != getattr(merged, name):
            return f"has another {name} than its K and V"
    if unknown := sorted(set(layer.attention.kv_head_of) - set(merged.kv_heads)):
        return f"reads KV head {unknown[0]}, which no rank has"
    if len(layer.q_scale) not in (1, len(layer.attention.query_heads)):
        return f"has {len(layer.q_scale)} values of q_scale, expected 1 or one a query head"
    return None
