"""The tables of what was captured: sampling rules, layers, requests, tokens; the same for all candidates."""

from __future__ import annotations

from typing import Final

from kvtrace.runs.columns import LAYER, OCTAVE, SAMPLING_ID, SOURCE
from kvtrace.runs.table import Column, Table

SAMPLING: Final = Table(
    "sampling",
    "source × sampling_id",
    (
        SOURCE,
        SAMPLING_ID,
        Column(
            "position_stride",
            "int32",
            "1 of this many positions of a sampled request is captured",
        ),
        Column("request_fraction", "float64", "share of requests that are sampled, 0 to 1"),
    ),
)

LAYERS: Final = Table(
    "layers",
    "source × captured layer",
    (
        SOURCE,
        LAYER,
        Column("dtype", "string", "of the captured K and V: bfloat16, float16 or float32"),
        Column("backend", "string", "attention backend, by the engine's own name"),
        Column("kv_cache_dtype", "string", "as the engine resolved it; auto: that of the model, no FP8"),
        Column("num_kv_heads", "int32", "KV heads captured, over all ranks"),
        Column("head_dim_k", "int32", "values of one K vector"),
        Column("head_dim_v", "int32", "values of one V vector"),
        Column(
            "residual_weight",
            "float64",
            "mean of ‖W_O o‖² / ‖h‖², h the residual stream after the layer's attention; NULL: not measured",
            since=4,
        ),
    ),
    since=2,
)

REQUESTS: Final = Table(
    "requests",
    "source × request",
    (
        SOURCE,
        Column("request", "int32", "the request's number in its trace"),
        Column("workload", "string", "the client's label, or unlabelled"),
        Column("client_id", "string", "keyed hash of the client's id; NULL where none was given"),
        Column("prompt_hash", "string", "keyed hash of the prompt's tokens; NULL where there is none"),
        Column("sampled", "bool_", "whether the sampling rules chose it"),
        SAMPLING_ID,
        Column("prompt_tokens", "int32", "tokens"),
        Column("output_tokens", "int32", "tokens generated so far"),
        Column("computed_tokens", "int32", "positions that have been through the model"),
        Column("status", "string", "the engine's finish reason, or running"),
        Column("num_rows", "int32", "rows captured"),
        Column(
            "num_missing", "int32", "positions not captured: prefix-cache hits, or capture was switched off"
        ),
        Column(
            "num_dropped",
            "int32",
            "rows sampled and lost (budget, full queue, faults, a killed engine), over all ranks",
        ),
    ),
)

ROWS: Final = Table(
    "rows",
    "source × row (a sampled token)",
    (
        SOURCE,
        Column("row", "int64", "row number in its source, 0-based"),
        Column("request", "int32", "the request it belongs to"),
        Column("position", "int32", "0-based position in the request"),
        OCTAVE,
        Column("phase", "string", "prefill or decode (position ≥ prompt_tokens)"),
        SAMPLING_ID,
    ),
)
