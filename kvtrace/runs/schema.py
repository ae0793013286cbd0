"""The tables of a run: every column, its Arrow type and what it means.

A run is a directory of Parquet files and `run.json`. It holds sums and maxima, never ratios, so SQL is right
at any grouping. A measurement that was not made is NULL or an absent row, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

RUN_SCHEMA_VERSION: Final = "1.0"
RUN_FILE: Final = "run.json"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, Arrow type and meaning, with the unit."""

    name: str
    type: pa.DataType
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """One Parquet file of a run."""

    name: str
    grain: str
    columns: tuple[Column, ...]

    @property
    def file_name(self) -> str:
        """Return the file's name inside the run directory."""
        return f"{self.name}.parquet"

    @property
    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema; each field carries its meaning as metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"meaning": c.meaning}) for c in self.columns],
            metadata={"grain": self.grain, "kvtrace_schema_version": RUN_SCHEMA_VERSION},
        )


_SOURCE = Column("source", pa.string(), "the trace's name, unique in the run")
_CANDIDATE = Column("candidate", pa.string(), "the candidate's name, unique in the run")
_LAYER = Column("layer", pa.int32(), "the model's layer index")
_KV_HEAD = Column("kv_head", pa.int32(), "global KV-head index, before tensor parallelism")
_TENSOR = Column("tensor", pa.string(), "k or v")
_SAMPLING_ID = Column(
    "sampling_id", pa.int32(), "the sampling rules in force (requests' stride and fraction)"
)

SAMPLING: Final = Table(
    "sampling",
    "source × sampling_id",
    (
        _SOURCE,
        _SAMPLING_ID,
        Column(
            "position_stride",
            pa.int32(),
            "1 of this many positions of a sampled request is captured",
        ),
        Column("request_fraction", pa.float64(), "share of requests that are sampled, 0 to 1"),
    ),
)

REQUESTS: Final = Table(
    "requests",
    "source × request",
    (
        _SOURCE,
        Column("request", pa.int32(), "the request's number in its trace"),
        Column("workload", pa.string(), "the client's label, or unlabelled"),
        Column("client_id", pa.string(), "keyed hash of the client's id; NULL where none was given"),
        Column("prompt_hash", pa.string(), "keyed hash of the prompt's tokens"),
        Column("sampled", pa.bool_(), "whether the sampling rules chose it"),
        _SAMPLING_ID,
        Column("prompt_tokens", pa.int32(), "tokens"),
        Column("output_tokens", pa.int32(), "tokens generated so far"),
        Column("computed_tokens", pa.int32(), "positions that have been through the model"),
        Column("status", pa.string(), "the engine's finish reason, or running"),
        Column("num_rows", pa.int32(), "rows captured"),
        Column("num_missing", pa.int32(), "positions never computed here, such as prefix-cache hits"),
        Column(
            "num_dropped",
            pa.int32(),
            "rows sampled and lost (budget, full queue, faults), over all ranks",
        ),
    ),
)

ROWS: Final = Table(
    "rows",
    "source × row (a sampled token)",
    (
        _SOURCE,
        Column("row", pa.int64(), "row number in its source, 0-based"),
        Column("request", pa.int32(), "the request it belongs to"),
        Column("position", pa.int32(), "0-based position in the request"),
        Column("position_octave", pa.int32(), "floor(log2(position)); position 0 counts with 1"),
        Column("phase", pa.string(), "prefill or decode (position ≥ prompt_tokens)"),
        _SAMPLING_ID,
    ),
)

CANDIDATES: Final = Table(
    "candidates",
    "candidate, in the order asked for",
    (
        _CANDIDATE,
        Column("ordinal", pa.int32(), "0-based order"),
        Column(
            "kind",
            pa.string(),
            "bf16 (unquantized), effective (what the engine used), unit (1.0) or artifact",
        ),
        Column("status", pa.string(), "valid or invalid"),
        Column("reason", pa.string(), "why it is invalid; NULL where valid"),
        Column(
            "hypothetical",
            pa.bool_(),
            "true unless the captured engine really wrote FP8 with these scales",
        ),
        Column("engine", pa.string(), "numerics replayed, such as vllm-cuda; NULL for bf16"),
        Column("format", pa.string(), "FP8 format, such as e4m3fn; NULL for bf16"),
        Column("granularity", pa.string(), "tensor or attn_head as applied; NULL for bf16"),
        Column("artifact", pa.string(), "path as given; NULL where none"),
        Column("artifact_sha256", pa.string(), "over the scale tensors as read; NULL where none"),
        Column(
            "note",
            pa.string(),
            "what a reader must know, such as names that matched nothing; NULL where none",
        ),
    ),
)

SCALES: Final = Table(
    "scales",
    "source × valid candidate × layer × kv_head × tensor",
    (
        _SOURCE,
        _CANDIDATE,
        _LAYER,
        _KV_HEAD,
        _TENSOR,
        Column(
            "scale",
            pa.float32(),
            "dequantization multiplier; NULL where the tensor is not quantized",
        ),
        Column(
            "covered_amax",
            pa.float32(),
            "MAX × scale, the largest magnitude in range; NULL unquantized",
        ),
        Column("max_in_range_code", pa.int32(), "largest 15-bit magnitude code still in range"),
        Column("max_unclipped_code", pa.int32(), "largest 15-bit magnitude code that is not clipped"),
        Column("origin", pa.string(), "file and key it was read from, effective, unit, or skipped"),
    ),
)

CELLS: Final = Table(
    "cells",
    "source × valid candidate × layer × kv_head × tensor × cell (workload × phase × octave × sampling_id)",
    (
        _SOURCE,
        _CANDIDATE,
        _LAYER,
        _KV_HEAD,
        _TENSOR,
        Column("workload", pa.string(), "the requests' label"),
        Column("phase", pa.string(), "prefill or decode"),
        Column("position_octave", pa.int32(), "floor(log2(position)); position 0 counts with 1"),
        _SAMPLING_ID,
        Column("num_vectors", pa.int64(), "rows in the cell"),
        Column("num_values", pa.int64(), "finite values"),
        Column("num_nonfinite", pa.int64(), "NaN and inf; in no other column"),
        Column("num_out_of_range", pa.int64(), "values with |x / scale| > MAX"),
        Column(
            "num_clipped",
            pa.int64(),
            "values beyond the point where rounding leaves MAX (464 for e4m3fn)",
        ),
        Column("num_flushed", pa.int64(), "non-zero values that become 0"),
        Column("sum_sq_signal", pa.float64(), "Σ x²"),
        Column("sum_sq_error", pa.float64(), "Σ (x − x̂)²"),
        Column("sum_sq_clip_error", pa.float64(), "Σ (x − x̂)² over clipped values"),
        Column("max_abs", pa.float64(), "largest finite |x|"),
    ),
)

VECTORS: Final = Table(
    "vectors",
    "source × row × layer × kv_head × tensor; candidate-independent",
    (
        _SOURCE,
        Column("row", pa.int64(), "see rows"),
        _LAYER,
        _KV_HEAD,
        _TENSOR,
        Column(
            "absmax_code",
            pa.int32(),
            "largest finite magnitude as its 15-bit code (bits without the sign)",
        ),
        Column("has_nonfinite", pa.bool_(), "whether the vector holds NaN or inf"),
    ),
)

TABLES: Final = (SAMPLING, REQUESTS, ROWS, CANDIDATES, SCALES, CELLS, VECTORS)
