"""Reads what attention is replayed from: a trace's queries, and the keys and values that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.errors import InputError
from kvtrace.trace.chunks import chunk_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.attention_format import AttentionRecord
    from kvtrace.trace.format import LayerRecord
    from kvtrace.trace.reader import Trace
    from kvtrace.trace.store import RankStore
    from kvtrace.trace.tokens import Tokens

DEFAULT_BATCH_BYTES: Final = 256 << 20
MAX_REQUEST_BYTES: Final = 4 << 30
"""As float32: a million tokens with 4 KV heads of 128 take that."""


def can_be_attended(trace: Trace) -> bool:
    """Return whether a trace has queries, and still the tensors that go with them."""
    refs = trace.block_refs() if trace.attention else ()
    return any(chunk_path(ref.store.path, ref.spec, ref.chunk).exists() for ref in refs)


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer's attention, put together over all ranks."""

    index: int
    name: str
    kv_heads: tuple[int, ...]
    """Global ids, ascending; the second axis of K and V."""
    query_heads: tuple[int, ...]
    """Global ids, ascending; the second axis of Q and of the output."""
    kv_head_of: tuple[int, ...]
    """For each of `query_heads`, the place of its KV head in `kv_heads`."""
    softmax_scale: float
    sliding_window: int | None
    """A query at p sees the keys in (p − sliding_window, p]; None: all up to p."""
    soft_cap: float | None
    sinks: tuple[float, ...] | None
    """By query head."""
    query_is_fp8: bool
    not_replayable: tuple[str, ...]
    """What shapes its logits and is not known."""


@dataclass(frozen=True, slots=True)
class AttentionValues:
    """Queries of one request in one layer, with the keys and values that were kept for them.

    q: [num_queries, query_head, head_dim], after RoPE; one that was FP8 is multiplied by its q_scale.
    k, v: [num_keys, kv_head, head_dim], before quantization. o: the engine's own output, [num_queries,
    query_head, head_dim_v], None where it was not captured. All float32.
    """

    request: int
    layer: AttentionLayer
    q: NDArray[np.float32]
    query_position: NDArray[np.int32]
    """[num_queries], ascending."""
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    key_position: NDArray[np.int32]
    """[num_keys], ascending."""
    o: NDArray[np.float32] | None

    @property
    def is_dense(self) -> bool:
        """Return whether every key that the queries see is there; else only some positions' are."""
        first = np.zeros_like(self.query_position)
        if self.layer.sliding_window is not None:
            first = np.maximum(self.query_position - self.layer.sliding_window + 1, 0)
        until = np.searchsorted(self.key_position, self.query_position, side="right")
        since = np.searchsorted(self.key_position, first)
        return bool((until - since == self.query_position - first + 1).all())


class CapturedQueries:
    """The queries of an open trace.

    Rows whose request has no record, that were written again later, or that lie beyond their request's end do
    not count, as in `Trace.tokens`.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._asked = trace.join(trace.attention.queries)
        self._context = trace.join(trace.attention.context)
        self.layers = {index: _merge(trace, index) for index in _layer_indices(trace)}
        """By index; those whose queries were captured."""

    @property
    def requests(self) -> tuple[int, ...]:
        """Return the requests that have queries."""
        return tuple(np.unique(self._asked.tokens.request).tolist())

    def query_positions(self, request: int) -> NDArray[np.int32]:
        """Return the positions of a request's queries, ascending."""
        return _positions(self._asked.tokens, request)

    def key_positions(self, request: int) -> NDArray[np.int32]:
        """Return the positions of which K and V were kept, ascending."""
        kept = (_positions(tokens, request) for tokens in (self._trace.tokens, self._context.tokens))
        return np.union1d(*kept)

    def batches(self, most_bytes: int = DEFAULT_BATCH_BYTES) -> Iterator[tuple[int, ...]]:
        """Yield the requests in groups whose values in one layer take `most_bytes`, or of one request each.

        Raises InputError: the values of one request in one layer take more than `MAX_REQUEST_BYTES`.
        """
        widest = max((_row_bytes(self._trace, index) for index in self.layers), default=(0, 0))
        batch: list[int] = []
        taken = 0
        for request in self.requests:
            num_rows = len(self.key_positions(request)), len(self.query_positions(request))
            num_bytes = num_rows[0] * widest[0] + num_rows[1] * widest[1]
            if num_bytes > MAX_REQUEST_BYTES:
                raise InputError(
                    f"{self._trace.path}: request {request} has {num_bytes:,} bytes of K, V and Q in one "
                    f"layer, more than the {MAX_REQUEST_BYTES:,} that are held at a time"
                )
            if batch and taken + num_bytes > most_bytes:
                yield tuple(batch)
                batch, taken = [], 0
            batch.append(request)
            taken += num_bytes
        if batch:
            yield tuple(batch)

    def read(self, layer: int, requests: Sequence[int]) -> list[AttentionValues]:
        """Return the values of some requests in one layer, in their order.

        A key, or a query, that a rank lacks is left out; a request without a query, or without a key, too.
        Raises IntegrityError: a chunk is missing, cut or damaged.
        """
        trace, merged = self._trace, self.layers[layer]
        attention = trace.attention
        kept = _Gathered(requests, [self.key_positions(request) for request in requests])
        asked = _Gathered(requests, [self.query_positions(request) for request in requests])
        for stores, joined in ((trace.ranks, trace.joined), (attention.context, self._context)):
            for store, token_of_row in zip(stores, joined.token_of_row, strict=True):
                kept.add(store, token_of_row, joined.tokens, layer)
        for store, token_of_row in zip(attention.queries, self._asked.token_of_row, strict=True):
            asked.add(store, token_of_row, self._asked.tokens, layer)
        k, v = kept.tensor("k", merged.kv_heads), kept.tensor("v", merged.kv_heads)
        outputs = "o" if attention.queries[0].rank.has_outputs else ""
        q, o = (asked.tensor(name, merged.query_heads) for name in "qo")
        has_key = kept.is_whole("kv", merged.kv_heads)
        has_query = asked.is_whole("q" + outputs, merged.query_heads)
        found = []
        for number, request in enumerate(requests):
            keys, queries = kept.rows_of(number, has_key), asked.rows_of(number, has_query)
            if len(keys) and len(queries):
                found.append(
                    AttentionValues(
                        request=request,
                        layer=merged,
                        q=q[queries],
                        query_position=asked.position[queries],
                        k=k[keys],
                        v=v[keys],
                        key_position=kept.position[keys],
                        o=o[queries] if outputs else None,
                    )
                )
        return found


class _Gathered:
    """Rows of some requests in one layer, from any number of stores."""

    def __init__(self, requests: Sequence[int], positions: Sequence[NDArray[np.int32]]) -> None:
        self._bounds = np.cumsum([0, *(len(part) for part in positions)])
        self.position = np.concatenate([*positions, np.empty(0, np.int32)]).astype(np.int32)
        numbers = np.repeat(np.asarray(requests, np.int64), np.diff(self._bounds))
        self._key = (numbers << 32) | self.position
        self._order = np.argsort(self._key)
        self._values: dict[tuple[str, int], NDArray[np.float32]] = {}
        self._has: dict[tuple[str, int], NDArray[np.bool_]] = {}

    def add(self, store: RankStore, token_of_row: NDArray[np.int64], tokens: Tokens, layer: int) -> None:
        """Read the rows of these requests that one store has."""
        if not len(self._key):
            return
        key = (tokens.request.astype(np.int64) << 32) | tokens.position
        ordered = self._key[self._order]
        place = np.searchsorted(ordered, key).clip(max=len(ordered) - 1)
        wanted = np.where(ordered[place] == key, self._order[place], -1)
        row = np.where(token_of_row >= 0, wanted[token_of_row], -1) if len(wanted) else token_of_row * 0 - 1
        for record, tensor, spec in store.tensor_specs():
            if record.index == layer:
                for chunk in range(store.num_chunks):
                    into = row[store.rows_of_chunk(chunk)]
                    if (into >= 0).any() and not store.is_lost(spec, chunk):
                        values = store.read_chunk(spec, chunk)[into >= 0]
                        self._put(tensor, record, into[into >= 0], _as_float32(values, record))

    def tensor(self, name: str, heads: Sequence[int]) -> NDArray[np.float32]:
        """Return [row, head, head_dim]; what no store has is 0."""
        found = [self._values[name, head] for head in heads if (name, head) in self._values]
        return np.stack(found, axis=1) if found else np.empty((len(self._key), 0, 0), np.float32)

    def is_whole(self, names: str, heads: Sequence[int]) -> NDArray[np.bool_]:
        """Return, for each row, whether every one of these heads of these tensors is there."""
        whole = np.ones(len(self._key), dtype=bool)
        for name, head in product(names, heads):
            whole &= self._has.get((name, head), False)
        return whole

    def rows_of(self, number: int, has: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the rows of a request that are whole."""
        start, stop = int(self._bounds[number]), int(self._bounds[number + 1])
        rows: NDArray[np.int64] = np.flatnonzero(has[start:stop]) + start
        return rows

    def _put(
        self, tensor: str, record: LayerRecord, into: NDArray[np.int64], values: NDArray[np.float32]
    ) -> None:
        heads = record.kv_heads
        if tensor in "qo":
            assert record.attention is not None, "a store of queries says how they are used"
            heads = record.attention.query_heads
            if tensor == "q" and record.attention.query_is_fp8:
                values *= np.asarray(record.q_scale, np.float32)[:, None]
        for place, head in enumerate(heads):
            if (tensor, head) not in self._values:
                self._values[tensor, head] = np.zeros((len(self._key), values.shape[2]), np.float32)
                self._has[tensor, head] = np.zeros(len(self._key), dtype=bool)
            self._values[tensor, head][into] = values[:, place]
            self._has[tensor, head][into] = True


def _as_float32(values: NDArray[Any], layer: LayerRecord) -> NDArray[np.float32]:
    if layer.dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.view(np.float16).astype(np.float32) if layer.dtype == "float16" else values


def _positions(tokens: Tokens, request: int) -> NDArray[np.int32]:
    start, stop = np.searchsorted(tokens.request, [request, request + 1])
    return tokens.position[start:stop]


def _layer_indices(trace: Trace) -> list[int]:
    return sorted(
        {layer.index for store in trace.attention.queries for layer in store.rank.layers if layer.captured}
    )


def _row_bytes(trace: Trace, index: int) -> tuple[int, int]:
    """Return the bytes of K and V, and of Q and the output, of one row in one layer, as float32."""
    layer = trace.layers[index]
    num_heads = sum(
        len(record.attention.query_heads)
        for store in trace.attention.queries
        for record in store.rank.layers
        if record.index == index and record.attention is not None
    )
    width = layer.head_dim_k + layer.head_dim_v
    return 4 * len(layer.kv_heads) * width, 4 * num_heads * width


def _merge(trace: Trace, index: int) -> AttentionLayer:
    """Put one layer's attention together. Query heads come in ascending order of their global ids."""
    parts: list[AttentionRecord] = [
        layer.attention
        for store in trace.attention.queries
        for layer in store.rank.layers
        if layer.index == index and layer.captured and layer.attention is not None
    ]
    merged, first = trace.layers[index], parts[0]
    kv_head = {head: kv for part in parts for head, kv in zip(part.query_heads, part.kv_head_of, strict=True)}
    sinks = {
        head: sink for part in parts for head, sink in zip(part.query_heads, part.sinks or (), strict=False)
    }
    heads = sorted(kv_head)
    return AttentionLayer(
        index=index,
        name=merged.name,
        kv_heads=merged.kv_heads,
        query_heads=tuple(heads),
        kv_head_of=tuple(merged.kv_heads.index(kv_head[head]) for head in heads),
        softmax_scale=first.softmax_scale,
        sliding_window=merged.sliding_window,
        soft_cap=first.soft_cap,
        sinks=tuple(sinks[head] for head in heads) if sinks else None,
        query_is_fp8=first.query_is_fp8,
        not_replayable=first.not_replayable,
    )
