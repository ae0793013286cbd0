"""The trace on disk: names, records, schema version. Shared by the capture plug-in and the reader.

    NAME.kvtrace/
      trace.json          TraceRecord: model, engine, privacy. Written once, by rank 0.
      requests.jsonl      RequestRecord a line, appended by the scheduler; the last line of a request wins.
      sampling.jsonl      SamplingRecord a line; rows carry the `sampling_id`. Replaced at each change.
      {requests,sampling}.commit.json    LinesCommit, replaced atomically: how far those files are whole
      rank-N.zarr/        one writer each
        rank.json         RankRecord: parallel ranks, layers, KV heads, effective scales.
        commit.json       CommitRecord, replaced atomically. What it does not cover does not exist.
        dropped.jsonl     DroppedRecord a line: rows lost on purpose or by a fault, per request.
        dropped.commit.json
        reserve           space that the writer gives back when it fails; gone after an orderly end
        rows/kv/{request,position,step,sampling_id}    [row]
        layers/NN/{k,v}                                [row, kv_head, head_dim]
      context-N.zarr/     only with queries, built as rank-N.zarr: K and V off the sampling grid, which
                          attention needs. They count in no table of values. Since 1.3.
      queries-N.zarr/     only with queries: rows/q/…, layers/NN/{q,o} [row, query_head, head_dim]. Since 1.3.
      repair.json         only in a repaired trace: what was lost (`kvtrace.trace.repair.record`)
      profile/, profile-groups/    only after a replay: counts over all of it (`kvtrace.trace.profile_format`)

Every record is *sealed*: it carries `crc32c`, the checksum of itself without that key (`seal`). Every chunk
file ends with its CRC32C, and `commit.json` says which one that must be. Zarr's own `zarr.json` is neither;
an array's is compared with what `rank.json` implies.
bf16 and fp16 tensors are stored as uint16 bits, since Zarr has no bfloat16. Only numpy, pydantic and
google-crc32c are imported here: this module is loaded inside the serving engine.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from kvtrace.trace.attention_format import AttentionRecord, ResidualRecord  # noqa: TC001 -- pydantic reads them
from kvtrace.trace.capture_names import TRACE_FILE as TRACE_FILE
from kvtrace.trace.line_records import UNLABELLED as UNLABELLED
from kvtrace.trace.line_records import DroppedRecord as DroppedRecord
from kvtrace.trace.line_records import RequestRecord as RequestRecord
from kvtrace.trace.line_records import SamplingRecord as SamplingRecord
from kvtrace.trace.model_record import EngineRecord as EngineRecord  # noqa: TC001 -- pydantic reads it
from kvtrace.trace.model_record import ModelRecord as ModelRecord  # noqa: TC001 -- pydantic reads it
from kvtrace.trace.model_record import PrivacyRecord as PrivacyRecord  # noqa: TC001 -- pydantic reads it
from kvtrace.trace.model_record import StoredDtype as StoredDtype  # noqa: TC001 -- pydantic reads it
from kvtrace.trace.sealed import Count, Hex, Name, Number, Seconds, Size, between, is_read, repeated
from kvtrace.trace.sealed import Record as Record
from kvtrace.trace.sealed import RecordT as RecordT
from kvtrace.trace.sealed import seal as seal
from kvtrace.trace.sealed import unseal as unseal

SCHEMA_VERSION: Final = "1.4"
TRACE_SUFFIX: Final = ".kvtrace"
UNUSED_ROW: Final = -1
"""`rows/kv/request` of a row that a sealed partial chunk leaves unused."""

REQUESTS_FILE: Final = "requests.jsonl"
SAMPLING_FILE: Final = "sampling.jsonl"
RANK_FILE: Final = "rank.json"
COMMIT_FILE: Final = "commit.json"
DROPPED_FILE: Final = "dropped.jsonl"
ROW_COLUMNS: Final = ("request", "position", "step", "sampling_id")

MAX_CHUNK_BYTES: Final = 256 << 20
"""Of one array's chunk, unpacked: twice what capture gives to the chunks of all arrays."""
MAX_ROWS: Final = 1 << 24
"""Of one rank: at 100 KB a row that is 1.6 TB of K and V."""

StoreKind = Literal["rank", "context", "queries"]
"""rank: K and V at the sampled positions. context: K and V at others, kept for attention. queries: Q."""


def rank_directory(rank: int, holds: StoreKind = "rank") -> str:
    """Return the directory name of one writer's store: `rank-N.zarr`, `context-N.zarr`, `queries-N.zarr`."""
    return f"{holds}-{rank}.zarr"


class TraceRecord(Record):
    """`trace.json`: one start of one engine replica."""

    schema_version: str = SCHEMA_VERSION
    trace_id: Name
    created_at: Seconds
    """Unix seconds."""
    model: ModelRecord
    engine: EngineRecord
    privacy: PrivacyRecord
    line_commits: bool = False
    """True: requests.jsonl and sampling.jsonl have a commit each (`kvtrace.trace.lines`). Without one, a cut
    at a line's end goes unseen."""
    repaired_from: str | None = None
    """Digest of the trace that `inspect --repair` made this one from; repair.json says what was lost."""


class LayerRecord(Record):
    """One attention layer on one rank: its shape, its backend and the scales in effect."""

    index: Annotated[int, between(0, 9999)]
    name: Name
    captured: bool = True
    """False where the sampling rules leave the layer out: it then has no arrays."""
    kv_heads: tuple[Size, ...]
    """Global ids of this rank's KV heads, in the order of the array's kv_head axis."""
    head_dim_k: Size
    head_dim_v: Size
    dtype: StoredDtype
    """Of K and V as they reach the cache write, before quantization."""
    backend: Name
    implementation: str
    kv_cache_dtype: Name
    """Effective for this layer; `auto` means the model's dtype. `kvtrace.trace.cache_dtypes` judges it."""
    block_size: Count
    sliding_window: int | None = None
    k_scale: tuple[float, ...]
    """Effective dequantization multiplier: one for the layer, or one per head of `kv_heads`."""
    v_scale: tuple[float, ...]
    q_scale: tuple[float, ...] = (1.0,)
    attention: AttentionRecord | None = None
    """How Q, K and V make its output; None where queries are not captured. Since 1.3."""
    details: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self, info: ValidationInfo) -> Self:
        if not is_read(info):
            return self
        if (head := repeated(self.kv_heads)) is not None:
            raise ValueError(f"kv_heads has {head} twice")
        if self.captured and not (self.kv_heads and self.head_dim_k and self.head_dim_v):
            raise ValueError("is captured without a KV head or a value of K or V")
        for name in ("k_scale", "v_scale"):
            if len(getattr(self, name)) not in (1, len(self.kv_heads)):
                found, heads = len(getattr(self, name)), len(self.kv_heads)
                raise ValueError(f"{name} has {found} values, expected 1 or one for each of {heads} KV heads")
        return self


class RankRecord(Record):
    """`rank.json`: what one writer stores."""

    schema_version: str = SCHEMA_VERSION
    trace_id: Name
    rank: Size
    holds: StoreKind = "rank"
    """Since 1.3."""
    has_outputs: bool = False
    """True: a store of queries also has the engine's attention output for each. Since 1.3."""
    tp_rank: Size = 0
    pp_rank: Size = 0
    rows_per_chunk: Annotated[int, between(1, 1 << 20)]
    line_commits: bool = False
    """True: dropped.jsonl has a commit."""
    layers: tuple[LayerRecord, ...]
    draft_layers: tuple[Name, ...] = ()
    """Names of a draft model's attention layers, which are not captured. Since 1.4."""

    @model_validator(mode="after")
    def _has_each_layer_once_in_chunks_that_fit(self, info: ValidationInfo) -> Self:
        if not is_read(info):
            return self
        if (index := repeated([layer.index for layer in self.layers])) is not None:
            raise ValueError(f"layers has index {index} twice")
        for layer in self.layers:
            if self.holds == "queries" and layer.captured and layer.attention is None:
                raise ValueError(f"layer {layer.index} has queries and does not say how they are used")
        for spec in array_specs(self):
            num_bytes = 4 * self.rows_per_chunk * math.prod(spec.row_shape)
            if num_bytes > MAX_CHUNK_BYTES:
                raise ValueError(
                    f"rows_per_chunk and the shape of {spec.path} make {num_bytes:,} bytes a chunk, expected "
                    f"at most {MAX_CHUNK_BYTES:,}"
                )
        return self


class ChunkCommit(Record):
    """One committed chunk of every array of a rank."""

    num_rows: Count
    """Rows in use; the rest of a sealed partial chunk has request == UNUSED_ROW."""
    digest: Hex
    """SHA-256 (hex) over the previous digest and the CRC32C of this chunk's files, in `array_specs` order."""
    crcs: Hex | None = None
    """Those CRC32Cs, 8 hex digits each: every file can be told from any other. Since 1.1."""
    lost: tuple[str, ...] = ()
    """Arrays whose file of this chunk was damaged and left out by a repair: these values are absent."""


class CommitRecord(Record):
    """`commit.json`: how far the rank's arrays can be trusted."""

    schema_version: str = SCHEMA_VERSION
    trace_id: Name
    rank: Size | None = None
    """Since 1.1."""
    chunks: tuple[ChunkCommit, ...] = ()
    closed: bool = False
    """True after an orderly shutdown; a trace without it may have lost its last rows."""
    failure: str | None = None
    """Why the writer stopped storing, where the disk still took it."""
    cost: dict[str, Number] = Field(default_factory=dict)
    """What the capture took: hook_s on the engine's thread, copy_s of it for copying rows out, write_s on the
    writer's thread, in seconds; raw_bytes, stored_bytes."""
    residual: tuple[ResidualRecord, ...] = ()
    """Of a store of queries, by layer; none where it was not measured. Since 1.3."""

    @model_validator(mode="after")
    def _has_each_layer_once(self, info: ValidationInfo) -> Self:
        if is_read(info) and (layer := repeated([one.layer for one in self.residual])) is not None:
            raise ValueError(f"residual has layer {layer} twice")
        return self


class ArraySpec(Record):
    """One array of a rank's store."""

    path: str
    dtype: Literal["int32", "int64", "uint16", "uint32", "float32"]
    row_shape: tuple[int, ...] = ()
    """Shape of one row: () for row columns, (kv_head, head_dim) for tensors."""
    attributes: dict[str, Any]


def row_column(rank: RankRecord, name: str) -> str:
    """Return the path of a row column in a store, such as `rows/kv/request`."""
    return f"rows/{'q' if rank.holds == 'queries' else 'kv'}/{name}"


def array_specs(rank: RankRecord) -> list[ArraySpec]:
    """List a store's arrays in their fixed order: row columns, then the tensors of each captured layer."""
    rows = "q" if rank.holds == "queries" else "kv"
    columns = [
        ArraySpec(
            path=row_column(rank, name),
            dtype="int64" if name == "step" else "int32",
            attributes={"rows": rows, "axes": ["row"], "head_axis": None},
        )
        for name in ROW_COLUMNS
    ]
    tensors = [
        ArraySpec(
            path=f"layers/{layer.index:02d}/{tensor}",
            dtype="float32" if layer.dtype == "float32" else "uint16",
            row_shape=(num_heads, head_dim),
            attributes={
                "rows": rows,
                "axes": ["row", "query_head" if rows == "q" else "kv_head", "head_dim"],
                "head_axis": rows,
                "dtype": layer.dtype,
                "stage": stage,
            },
        )
        for layer in rank.layers
        if layer.captured
        for tensor, num_heads, head_dim, stage in _tensors(rank, layer)
    ]
    return columns + tensors


def _tensors(rank: RankRecord, layer: LayerRecord) -> list[tuple[str, int, int, str]]:
    """Return (name, heads, head_dim, stage) of each tensor of one layer."""
    if rank.holds != "queries":
        heads = len(layer.kv_heads)
        return [
            ("k", heads, layer.head_dim_k, "after_rope_before_quantization"),
            ("v", heads, layer.head_dim_v, "before_quantization"),
        ]
    assert layer.attention is not None, "a store of queries has layers that say how queries are used"
    heads = len(layer.attention.query_heads)
    is_fp8 = layer.attention.query_is_fp8
    query = ("q", heads, layer.head_dim_k, "divided_by_q_scale_in_fp8" if is_fp8 else "after_rope")
    output = ("o", heads, layer.head_dim_v, "attention_output_before_projection")
    return [query, output] if rank.has_outputs else [query]
