"""Open a trace: check its records, join its ranks, stream its tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from kvtrace.errors import EmptyTraceError, IntegrityError
from kvtrace.files.regular import read_regular
from kvtrace.plain_text import plain
from kvtrace.trace.cache_dtypes import CacheKind, cache_kind, common_kind
from kvtrace.trace.cache_layers import CacheLayers, traced_layers
from kvtrace.trace.format import (
    RANK_FILE,
    REQUESTS_FILE,
    SAMPLING_FILE,
    TRACE_FILE,
    TRACE_SUFFIX,
    LayerRecord,
    RequestRecord,
    SamplingRecord,
    TraceRecord,
    rank_directory,
)
from kvtrace.trace.liveness import is_being_written, why_empty
from kvtrace.trace.merged_layers import MergedLayer, merge_layers
from kvtrace.trace.opening import read_trace_record
from kvtrace.trace.platforms import platform_of
from kvtrace.trace.query_stores import QueryStores, open_query_stores
from kvtrace.trace.rejected import most_drafts
from kvtrace.trace.repair.record import REPAIR_FILE, RepairRecord
from kvtrace.trace.requests import (
    COPY_OR_REPAIR,
    LINES_BYTES,
    read_covered,
    read_lines_commit,
    read_requests,
    read_sampling,
    read_sealed,
)
from kvtrace.trace.store import RankStore, open_store
from kvtrace.trace.tokens import JoinedRows, Tokens, join_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.format import ArraySpec, CommitRecord


_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Block:
    """The values of some tokens in one layer, K or V, on one rank.

    row: [num_rows] int64, index into `Trace.tokens`. kv_heads: global ids of the second axis.
    values: [num_rows, kv_head, head_dim]; uint16 bits where layer.dtype is bfloat16 or float16, else float32.
    """

    layer: LayerRecord
    tensor: Literal["k", "v"]
    kv_heads: tuple[int, ...]
    row: NDArray[np.int64]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block not read yet. `load` may be called from any thread."""

    store: RankStore
    token_of_row: NDArray[np.int64]
    layer: LayerRecord
    tensor: Literal["k", "v"]
    spec: ArraySpec
    chunk: int

    def load(self) -> Block:
        """Read, check and unpack the chunk. Raises IntegrityError naming its file."""
        values = self.store.read_chunk(self.spec, self.chunk)
        row = self.token_of_row[self.store.rows_of_chunk(self.chunk)]
        counted = row >= 0
        if not counted.all():
            row, values = row[counted], values[counted]
        return Block(self.layer, self.tensor, self.layer.kv_heads, row, values)


@dataclass(frozen=True, slots=True, repr=False)
class Trace:
    """An open trace. Tensors are read from disk as they are asked for."""

    path: Path
    record: TraceRecord
    requests: dict[int, RequestRecord]
    sampling: dict[int, SamplingRecord]
    ranks: tuple[RankStore, ...]
    joined: JoinedRows
    layers: dict[int, MergedLayer]
    digest: str
    """SHA-256 over every record file and the commit digests: equal digests mean equal content."""
    repair: RepairRecord | None = None
    """What a repair lost; None for a trace as it was captured."""
    attention: QueryStores = field(default_factory=QueryStores)
    """What attention can be replayed from (`kvtrace.trace.queries`); empty where no queries were captured."""
    is_running: bool = False
    """Whether its engine still ran when it was opened: more rows may come (`kvtrace.trace.liveness`)."""

    def __repr__(self) -> str:
        model, size = (
            plain(self.record.model.name),
            f"{len(self.requests):,} requests, {len(self.tokens):,} rows",
        )
        return f"<kvtrace trace {self.path}: {model}, {len(self.layers)} layers, {size}>"

    @property
    def name(self) -> str:
        """Return the directory's name without `.kvtrace`."""
        return self.path.resolve().name.removesuffix(TRACE_SUFFIX)

    @property
    def tokens(self) -> Tokens:
        """Return the sampled tokens, ranks joined."""
        return self.joined.tokens

    @property
    def cache_dtypes(self) -> tuple[str, ...]:
        """Return the distinct cache dtypes of the captured layers, sorted."""
        return tuple(sorted({layer.kv_cache_dtype for layer in self.layers.values()}))

    @property
    def cache_kind(self) -> CacheKind:
        """Return what the captured layers' caches are taken together."""
        return common_kind(self.cache_dtypes)

    @property
    def cache_layers(self) -> CacheLayers:
        """Return which layers of the model own a cache, and with how many KV heads."""
        records = [layer for rank in self.ranks for layer in rank.rank.layers]
        recorded = {layer.index: cache_kind(layer.kv_cache_dtype) for layer in records}
        names = self.record.engine.settings.get("layers_without_kv", ())
        without_kv = [name for name in names if isinstance(name, str)]
        model = self.record.model
        found = traced_layers(model.hf_config, model.num_layers, without_kv, recorded)
        heads = {index: max(layer.kv_heads) + 1 for index, layer in self.layers.items()}
        return replace(found, kv_heads=model.num_kv_heads, kv_heads_of={**found.kv_heads_of, **heads})

    @property
    def platform(self) -> str | None:
        """Return the platform that the engine ran on, None where it cannot be told."""
        return platform_of(self.record.engine, [layer.backend for layer in self.layers.values()])

    def join(self, stores: tuple[RankStore, ...]) -> JoinedRows:
        """Join the rows of some stores of this trace."""
        return join_ranks(stores, self.requests, most_drafts(self.record.engine))

    def block_refs(self) -> list[BlockRef]:
        """List every stored block, in file order; one that a repair left out is there, without rows."""
        return [
            BlockRef(
                store,
                np.full_like(token_of_row, -1) if store.is_lost(spec, chunk) else token_of_row,
                layer,
                "k" if tensor == "k" else "v",
                spec,
                chunk,
            )
            for store, token_of_row in zip(self.ranks, self.joined.token_of_row, strict=True)
            for chunk in range(store.num_chunks)
            for layer, tensor, spec in store.tensor_specs()
        ]

    def blocks(self) -> Iterator[Block]:
        """Stream every stored tensor once; one chunk is in memory at a time.

        Raises IntegrityError: a chunk is missing, cut or damaged.
        """
        for ref in self.block_refs():
            yield ref.load()


def open_trace(path: Path | str, *, may_lack_tokens: bool = False) -> Trace:
    """Open the trace in directory `path`; tensors stay on disk.

    may_lack_tokens: open it too if no row is committed, or none that is counts, as after an early death of
    the engine.
    Raises NotATraceError, SchemaVersionError, IntegrityError, or EmptyTraceError (no committed row).
    """
    path = Path(path)
    record = read_trace_record(path)
    repair = read_sealed(path / REPAIR_FILE, RepairRecord) if record.repaired_from else None
    directories = _rank_directories(path, record, repair)
    is_running = is_being_written(directories)
    # Rows first: of an engine that runs, the requests of what is committed have a line by then.
    ranks = tuple(open_store(store) for store in directories)
    requests = read_requests(path, committed=record.line_commits)
    sampling = read_sampling(path, committed=record.line_commits)
    for store in ranks:
        if store.rank.trace_id != record.trace_id:
            raise IntegrityError(
                f"{store.path}: belongs to trace {store.rank.trace_id}, "
                f"expected {record.trace_id}. {COPY_OR_REPAIR}"
            )
    has_rows = any(chunk.num_rows for store in ranks for chunk in store.commit.chunks)
    if not has_rows and not may_lack_tokens:
        raise EmptyTraceError(f"{path}: holds no committed row. {why_empty(is_running=is_running)}")
    joined = join_ranks(ranks, requests, most_drafts(record.engine))
    if not len(joined.tokens) and not may_lack_tokens:
        raise EmptyTraceError(
            f"{path}: none of its committed rows counts: requests have no record, or ended before them. "
            "Did the engine die before it wrote its first requests?"
        )
    _check_sampling_ids(path, requests, sampling, joined.tokens.sampling_id)
    layers = merge_layers(ranks)
    attention = open_query_stores(path, record, ranks, layers)
    _check_sampling_ids(path, requests, sampling, *(store.sampling_ids for store in attention.all))
    stores = [(store.path, store.commit) for store in (*ranks, *attention.all)]
    digest = digest_of_records(path, record, stores)
    return Trace(
        path, record, requests, sampling, ranks, joined, layers, digest, repair, attention, is_running
    )


def _rank_directories(path: Path, record: TraceRecord, repair: RepairRecord | None) -> list[Path]:
    # By the one name of each: `rank-00.zarr` is nobody's.
    found = {
        int(p.name[5:-5]): p
        for p in path.glob("rank-*.zarr")
        if p.name[5:-5].isdecimal() and p.name == rank_directory(int(p.name[5:-5]))
    }
    expected = range(record.engine.tensor_parallel_size * record.engine.pipeline_parallel_size)
    lost = repair.lost_ranks if repair else ()
    missing = [f"rank-{rank}.zarr" for rank in expected if rank not in found and rank not in lost]
    if missing:
        raise IntegrityError(
            f"{path}: {_listed(missing)} missing; the engine ran on {len(expected)} ranks. "
            "Copy the stores of all ranks, which may lie on other hosts, into one directory"
        )
    return [found[rank] for rank in sorted(found)]


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest


def _check_sampling_ids(
    path: Path,
    requests: dict[int, RequestRecord],
    sampling: dict[int, SamplingRecord],
    *of_rows: NDArray[np.int32],
) -> None:
    """The rules are recorded before a request or row refers to them: an unknown id means a lost line."""
    used = {r.sampling_id for r in requests.values()}
    used.update(*(np.unique(ids).tolist() for ids in of_rows))
    if unknown := sorted(used - set(sampling)):
        raise IntegrityError(
            f"{path / SAMPLING_FILE}: lacks sampling rules {', '.join(map(str, unknown))}, which requests or "
            f"rows refer to. {COPY_OR_REPAIR}"
        )


def digest_of_records(path: Path, record: TraceRecord, stores: Sequence[tuple[Path, CommitRecord]]) -> str:
    """Return `Trace.digest`; of a damaged trace, over its files of lines as they are."""
    digest = hashlib.sha256(read_regular(path / TRACE_FILE))
    for name in (REQUESTS_FILE, SAMPLING_FILE):
        try:
            commit = read_lines_commit(path / name, committed=record.line_commits)
            digest.update(read_covered(path / name, commit))
        except IntegrityError:
            digest.update(read_regular(path / name, LINES_BYTES) if (path / name).is_file() else b"")
    for store, commit_record in stores:
        digest.update(read_regular(store / RANK_FILE))
        digest.update("".join(chunk.digest for chunk in commit_record.chunks).encode())
        lost = [(n, *chunk.lost) for n, chunk in enumerate(commit_record.chunks) if chunk.lost]
        digest.update(repr(lost).encode() if lost else b"")
        measured = [(one.layer, one.num_queries, one.sum_ratio) for one in commit_record.residual]
        digest.update(repr(measured).encode() if measured else b"")
    return digest.hexdigest()
