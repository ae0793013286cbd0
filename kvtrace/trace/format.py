"""The trace on disk: names, records, schema version. Shared by the capture plug-in and the reader.

    NAME.kvtrace/
      trace.json          TraceRecord: model, engine, privacy. Written once, by rank 0.
      requests.jsonl      RequestRecord a line, appended by the scheduler; the last line of a request wins.
      sampling.jsonl      SamplingRecord a line; rows carry the `sampling_id`.
      rank-N.zarr/        one writer each
        rank.json         RankRecord: parallel ranks, layers, KV heads, effective scales.
        commit.json       CommitRecord, replaced atomically. What it does not cover does not exist.
        dropped.jsonl     DroppedRecord a line: rows lost on purpose or by a fault, per request.
        rows/kv/{request,position,step,sampling_id}    [row]
        layers/NN/{k,v}                                [row, kv_head, head_dim]

Every JSON object is *sealed*: it carries `crc32c`, the checksum of itself without that key (`seal`).
bf16 and fp16 tensors are stored as uint16 bits, since Zarr has no bfloat16. Only numpy, pydantic and
google-crc32c are imported here: this module is loaded inside the serving engine.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeVar

import google_crc32c
from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = "1.0"
TRACE_SUFFIX: Final = ".kvtrace"
UNLABELLED: Final = "unlabelled"
"""The workload of a request whose client gave none."""
UNUSED_ROW: Final = -1
"""`rows/kv/request` of a row that a sealed partial chunk leaves unused."""

TRACE_FILE: Final = "trace.json"
REQUESTS_FILE: Final = "requests.jsonl"
SAMPLING_FILE: Final = "sampling.jsonl"
RANK_FILE: Final = "rank.json"
COMMIT_FILE: Final = "commit.json"
DROPPED_FILE: Final = "dropped.jsonl"
ROW_COLUMNS: Final = ("request", "position", "step", "sampling_id")

StoredDtype = Literal["bfloat16", "float16", "float32"]
RecordT = TypeVar("RecordT", bound="Record")


def rank_directory(rank: int) -> str:
    """Return the directory name of one writer's store, `rank-N.zarr`."""
    return f"rank-{rank}.zarr"


class Record(BaseModel):
    """Base of all records. Unknown keys are ignored: a minor version may add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class ModelRecord(Record):
    """The model as the engine loaded it. Digests are `algorithm:hex`; None where it could not be read."""

    name: str
    revision: str | None = None
    tokenizer_revision: str | None = None
    weights_digest: str | None = None
    """Over all tensors that are no scales (`kvtrace.trace.fingerprint`)."""
    tokenizer_digest: str | None = None
    chat_template_digest: str | None = None
    dtype: StoredDtype
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    """KV heads of the whole model, before tensor parallelism."""
    head_dim: int
    max_model_len: int
    hf_config: dict[str, Any] = Field(default_factory=dict)


class EngineRecord(Record):
    """The engine that ran, and the settings that shape what it wrote."""

    name: str
    version: str
    torch_version: str
    kvtrace_version: str
    device: str
    kv_cache_dtype: str
    """As the engine resolved it: `auto` (the model's dtype), `fp8_e4m3`, …"""
    block_size: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_rank: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    """Scheduler, cache, compilation and decoding settings, by the engine's own names."""


class PrivacyRecord(Record):
    """What the trace holds of the people who sent the prompts."""

    prompt_text: bool = False
    token_ids: bool = False
    hash_algorithm: str = "hmac-sha256"
    key_id: str
    """First 8 hex digits of the key's SHA-256: hashes can be joined only between traces with equal key_id."""


class TraceRecord(Record):
    """`trace.json`: one start of one engine replica."""

    schema_version: str = SCHEMA_VERSION
    trace_id: str
    created_at: float
    """Unix seconds."""
    model: ModelRecord
    engine: EngineRecord
    privacy: PrivacyRecord


class LayerRecord(Record):
    """One attention layer on one rank: its shape, its backend and the scales in effect."""

    index: int
    name: str
    captured: bool = True
    """False where the sampling rules leave the layer out: it then has no arrays."""
    kv_heads: tuple[int, ...]
    """Global ids of this rank's KV heads, in the order of the array's kv_head axis."""
    head_dim_k: int
    head_dim_v: int
    dtype: StoredDtype
    """Of K and V as they reach the cache write, before quantization."""
    backend: str
    implementation: str
    kv_cache_dtype: str
    """Effective for this layer; `auto` means the model's dtype, so no FP8."""
    block_size: int
    sliding_window: int | None = None
    k_scale: tuple[float, ...]
    """Effective dequantization multiplier: one for the layer, or one per head of `kv_heads`."""
    v_scale: tuple[float, ...]
    q_scale: tuple[float, ...] = (1.0,)
    details: dict[str, Any] = Field(default_factory=dict)

    @property
    def has_fp8_cache(self) -> bool:
        """Whether the engine writes this layer's K and V as FP8."""
        return self.kv_cache_dtype.startswith("fp8")


class RankRecord(Record):
    """`rank.json`: what one writer stores."""

    schema_version: str = SCHEMA_VERSION
    trace_id: str
    rank: int
    tp_rank: int = 0
    pp_rank: int = 0
    rows_per_chunk: int
    layers: tuple[LayerRecord, ...]


class ChunkCommit(Record):
    """One committed chunk of every array of a rank."""

    num_rows: int
    """Rows in use; the rest of a sealed partial chunk has request == UNUSED_ROW."""
    digest: str
    """SHA-256 (hex) over the previous digest and the CRC32C of this chunk's files, in `array_specs` order."""


class CommitRecord(Record):
    """`commit.json`: how far the rank's arrays can be trusted."""

    schema_version: str = SCHEMA_VERSION
    trace_id: str
    chunks: tuple[ChunkCommit, ...] = ()
    closed: bool = False
    """True after an orderly shutdown; a trace without it may have lost its last rows."""
    cost: dict[str, float] = Field(default_factory=dict)
    """hook_s, write_s, raw_bytes, stored_bytes: what the capture itself took."""


class RequestRecord(Record):
    """One request as the scheduler saw it. The last line for a `request` wins."""

    request: int
    workload: str = UNLABELLED
    client_id: str | None = None
    """HMAC of the id that the client gave (`kvtrace_id`)."""
    prompt_hash: str | None = None
    """HMAC of the prompt's token ids."""
    sampled: bool
    sampling_id: int
    offset: int = 0
    """Sampled positions are those with position % stride == offset."""
    prompt_tokens: int
    output_tokens: int = 0
    computed_tokens: int = 0
    """Positions [0, computed_tokens) have been through the model, `missing` ones excepted."""
    missing: tuple[tuple[int, int], ...] = ()
    """Half-open position ranges never computed here, such as prefix-cache hits."""
    preemptions: int = 0
    status: str
    """`running`, `stop`, `length`, `abort`, …: the engine's own finish reason."""
    arrived_at: float
    """Unix seconds."""


class SamplingRecord(Record):
    """One set of sampling rules."""

    sampling_id: int
    started_at: float
    layers: tuple[int, ...] | None = None
    """None: all."""
    workloads: tuple[str, ...] | None = None
    position_stride: int = 16
    request_fraction: float = 1.0
    byte_budget: int | None = None
    """Bytes of raw K and V per rank; None: no limit."""


class DroppedRecord(Record):
    """Rows of one request that a rank sampled and did not store."""

    request: int
    num_rows: int
    reason: Literal["budget", "queue_full", "write_failed", "hook_failed"]


class ArraySpec(Record):
    """One array of a rank's store."""

    path: str
    dtype: Literal["int32", "int64", "uint16", "uint32", "float32"]
    row_shape: tuple[int, ...] = ()
    """Shape of one row: () for row columns, (kv_head, head_dim) for tensors."""
    attributes: dict[str, Any]


def array_specs(rank: RankRecord) -> list[ArraySpec]:
    """List a rank's arrays in their fixed order: row columns, then k and v of each captured layer."""
    columns = [
        ArraySpec(
            path=f"rows/kv/{name}",
            dtype="int64" if name == "step" else "int32",
            attributes={"rows": "kv", "axes": ["row"], "head_axis": None},
        )
        for name in ROW_COLUMNS
    ]
    tensors = [
        ArraySpec(
            path=f"layers/{layer.index:02d}/{tensor}",
            dtype="float32" if layer.dtype == "float32" else "uint16",
            row_shape=(len(layer.kv_heads), head_dim),
            attributes={
                "rows": "kv",
                "axes": ["row", "kv_head", "head_dim"],
                "head_axis": "kv",
                "dtype": layer.dtype,
                "stage": "after_rope_before_quantization" if tensor == "k" else "before_quantization",
            },
        )
        for layer in rank.layers
        if layer.captured
        for tensor, head_dim in (("k", layer.head_dim_k), ("v", layer.head_dim_v))
    ]
    return columns + tensors


def seal(record: Record, *, indent: int | None = None) -> str:
    """Return the record as JSON with its checksum under `crc32c`.

    The checksum is over the canonical form (sorted keys, no spaces, UTF-8), so indentation is free.
    """
    content = json.loads(record.model_dump_json())
    content["crc32c"] = _checksum(content)
    return json.dumps(content, indent=indent, allow_nan=False)


def unseal(text: str | bytes, kind: type[RecordT]) -> RecordT:
    """Parse a sealed JSON object.

    Raises ValueError: no JSON object, a wrong or absent checksum, or a field that does not fit `kind`.
    """
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    found = content.pop("crc32c", None)
    if found != _checksum(content):
        raise ValueError(f"checksum is {found}, its content gives {_checksum(content)}")
    return kind.model_validate(content)


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(canonical.encode()):08x}"
