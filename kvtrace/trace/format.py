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
      repair.json         only in a repaired trace: what was lost (`kvtrace.trace.repair.record`)
      profile/, profile-groups/    only after a replay: counts over all of it (`kvtrace.trace.profile_format`)

Every record is *sealed*: it carries `crc32c`, the checksum of itself without that key (`seal`). Every chunk
file ends with its CRC32C, and `commit.json` says which one that must be. Zarr's own `zarr.json` is neither;
an array's is compared with what `rank.json` implies.
bf16 and fp16 tensors are stored as uint16 bits, since Zarr has no bfloat16. Only numpy, pydantic and
google-crc32c are imported here: this module is loaded inside the serving engine.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from kvtrace.trace.capture_names import TRACE_FILE as TRACE_FILE
from kvtrace.trace.sealed import Record as Record
from kvtrace.trace.sealed import RecordT as RecordT
from kvtrace.trace.sealed import seal as seal
from kvtrace.trace.sealed import unseal as unseal

SCHEMA_VERSION: Final = "1.2"
TRACE_SUFFIX: Final = ".kvtrace"
UNLABELLED: Final = "unlabelled"
"""The workload of a request whose client gave none."""
UNUSED_ROW: Final = -1
"""`rows/kv/request` of a row that a sealed partial chunk leaves unused."""

REQUESTS_FILE: Final = "requests.jsonl"
SAMPLING_FILE: Final = "sampling.jsonl"
RANK_FILE: Final = "rank.json"
COMMIT_FILE: Final = "commit.json"
DROPPED_FILE: Final = "dropped.jsonl"
ROW_COLUMNS: Final = ("request", "position", "step", "sampling_id")

StoredDtype = Literal["bfloat16", "float16", "float32"]


def rank_directory(rank: int) -> str:
    """Return the directory name of one writer's store, `rank-N.zarr`."""
    return f"rank-{rank}.zarr"


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
    platform: str | None = None
    """cuda, rocm, cpu, xpu, tpu, hpu, or another by the engine's name. Since 1.2; `kvtrace.trace.platforms`
    tells it of older traces."""
    device: str
    """The product's name, such as "NVIDIA H100 80GB HBM3"; the device type where a platform has no names."""
    compute_capability: str | None = None
    """Such as "9.0"; None where the platform has none. Since 1.2."""
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
    line_commits: bool = False
    """True: requests.jsonl and sampling.jsonl have a commit each (`kvtrace.trace.lines`). Without one, a cut
    at a line's end goes unseen."""
    repaired_from: str | None = None
    """Digest of the trace that `inspect --repair` made this one from; repair.json says what was lost."""


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
    """Effective for this layer; `auto` means the model's dtype. `kvtrace.trace.cache_dtypes` judges it."""
    block_size: int
    sliding_window: int | None = None
    k_scale: tuple[float, ...]
    """Effective dequantization multiplier: one for the layer, or one per head of `kv_heads`."""
    v_scale: tuple[float, ...]
    q_scale: tuple[float, ...] = (1.0,)
    details: dict[str, Any] = Field(default_factory=dict)


class RankRecord(Record):
    """`rank.json`: what one writer stores."""

    schema_version: str = SCHEMA_VERSION
    trace_id: str
    rank: int
    tp_rank: int = 0
    pp_rank: int = 0
    rows_per_chunk: int
    line_commits: bool = False
    """True: dropped.jsonl has a commit."""
    layers: tuple[LayerRecord, ...]


class ChunkCommit(Record):
    """One committed chunk of every array of a rank."""

    num_rows: int
    """Rows in use; the rest of a sealed partial chunk has request == UNUSED_ROW."""
    digest: str
    """SHA-256 (hex) over the previous digest and the CRC32C of this chunk's files, in `array_specs` order."""
    crcs: str | None = None
    """Those CRC32Cs, 8 hex digits each: every file can be told from any other. Since 1.1."""
    lost: tuple[str, ...] = ()
    """Arrays whose file of this chunk was damaged and left out by a repair: these values are absent."""


class CommitRecord(Record):
    """`commit.json`: how far the rank's arrays can be trusted."""

    schema_version: str = SCHEMA_VERSION
    trace_id: str
    rank: int | None = None
    """Since 1.1."""
    chunks: tuple[ChunkCommit, ...] = ()
    closed: bool = False
    """True after an orderly shutdown; a trace without it may have lost its last rows."""
    failure: str | None = None
    """Why the writer stopped storing, where the disk still took it."""
    cost: dict[str, float] = Field(default_factory=dict)
    """What the capture took: hook_s on the engine's thread, copy_s of it for copying rows out, write_s on the
    writer's thread, in seconds; raw_bytes, stored_bytes."""


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
    """Positions [0, computed_tokens) have been through the model, or were found in the prefix cache."""
    missing: tuple[tuple[int, int], ...] = ()
    """Half-open position ranges that were not captured: never computed here (prefix-cache hits), or computed
    while capture was switched off."""
    switched_off: tuple[tuple[int, int], ...] = ()
    """Those of `missing` that were computed while capture was switched off; none where it was not sampled."""
    preemptions: int = 0
    status: str
    """`running`, `stop`, `length`, `abort`, …: the engine's own finish reason."""
    arrived_at: float
    """Unix seconds."""


class SamplingRecord(Record):
    """One set of sampling rules, in force from `started_at` until the next record's."""

    sampling_id: int
    started_at: float
    layers: tuple[int, ...] | None = None
    """None: all."""
    workloads: tuple[str, ...] | None = None
    position_stride: int = 16
    request_fraction: float = 1.0
    """0: capture was switched off, and requests that arrived then are not recorded."""
    byte_budget: int | None = None
    """Bytes of raw K and V per rank while these rules are in force; None: no limit."""


class DroppedRecord(Record):
    """Rows of one request that a rank sampled and did not store."""

    request: int
    num_rows: int
    reason: Literal["budget", "queue_full", "write_failed", "hook_failed", "damaged"]
    """damaged: stored, and left out by a repair."""


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
