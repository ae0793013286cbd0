"""The tables of a run: every column, its Arrow type and what it means.

A run is a directory of Parquet files and `run.json`. It holds sums and maxima, never ratios, so SQL is right
at any grouping. A measurement that was not made is NULL or an absent row, never zero.
"""

from __future__ import annotations

from typing import Final

from kvtrace.runs.attention_tables import ATTENTION, ATTENTION_LAYERS
from kvtrace.runs.columns import CANDIDATE, KV_HEAD, LAYER, OCTAVE, PHASE, SAMPLING_ID, SOURCE, WORKLOAD
from kvtrace.runs.table import Column, Table
from kvtrace.runs.traffic_tables import LAYERS, REQUESTS, ROWS, SAMPLING

RUN_FILE: Final = "run.json"

_TENSOR = Column("tensor", "string", "k or v")
_HEAD = (LAYER, KV_HEAD, _TENSOR)
_NUM_VALUES = Column("num_values", "int64", "finite values")
_CLIPPED_AS_IN_CELLS = Column("num_clipped", "int64", "as in cells")
_MAX_ABS = Column("max_abs", "float64", "largest finite |x|; NULL where there is none")
_SUMS = (
    Column("num_flushed", "int64", "non-zero values that become 0"),
    Column("sum_sq_signal", "float64", "Σ x²"),
    Column("sum_sq_error", "float64", "Σ (x − x̂)²"),
    Column("sum_sq_clip_error", "float64", "Σ (x − x̂)² over clipped values; NULL as num_out_of_range is"),
)


CANDIDATES: Final = Table(
    "candidates",
    "candidate, in the order asked for",
    (
        CANDIDATE,
        Column("ordinal", "int32", "0-based order"),
        Column(
            "kind",
            "string",
            "bf16 (unquantized), effective (what the engine used), unit (1.0), artifact, "
            "swept (static scales made of the traces themselves), fresh (those that just cover each trace), "
            "online (a cache format that takes no scales) or format (one that does, or K and V apart)",
        ),
        Column("status", "string", "valid or invalid"),
        Column("reason", "string", "why it is invalid; NULL where valid"),
        Column(
            "reason_id", "string", "which reason that is, such as per-head-refused; NULL where valid", since=2
        ),
        Column(
            "hypothetical",
            "bool_",
            "true unless the captured engine really wrote FP8 with these scales, in this way",
        ),
        Column(
            "engine",
            "string",
            "numerics replayed, such as vllm-cuda; of a cache format its product; NULL for bf16",
        ),
        Column(
            "format", "string", "FP8 format, such as e4m3fn, or cache format, such as nvfp4; NULL for bf16"
        ),
        Column("granularity", "string", "tensor, attn_head or token_head as applied; NULL for bf16"),
        Column("artifact", "string", "path as given; NULL where none"),
        Column("artifact_sha256", "string", "over the scale tensors as read; NULL where none"),
        Column(
            "calibrated_max_length",
            "int32",
            "positions below this were calibrated on, by the artifact's manifest; NULL without one",
        ),
        Column(
            "note",
            "string",
            "what a reader must know, such as names that matched nothing; NULL where none",
        ),
        Column(
            "rounding_floor_db",
            "float64",
            "SQNR in dB that rounding alone leaves, for mantissas whose logarithm is uniform; NULL where "
            "nothing is rounded to a float format (bf16, int8)",
            since=2,
        ),
    ),
)

SCALES: Final = Table(
    "scales",
    "source × valid candidate × layer × kv_head × tensor",
    (
        SOURCE,
        CANDIDATE,
        *_HEAD,
        Column(
            "scale",
            "float32",
            "dequantization multiplier; NULL where not quantized, or every vector gets its own",
        ),
        Column(
            "covered_amax",
            "float32",
            "MAX × scale, the largest magnitude in range; NULL unquantized",
        ),
        Column(
            "calibrated_amax",
            "float32",
            "largest magnitude of its calibration, by the artifact's manifest; NULL without one",
            since=1,
        ),
        Column(
            "max_in_range_code", "int32", "largest 15-bit magnitude code still in range; NULL without a scale"
        ),
        Column(
            "max_unclipped_code",
            "int32",
            "largest 15-bit magnitude code that is not clipped; NULL without a scale",
        ),
        Column(
            "origin",
            "string",
            "file and key it was read from, effective, unit, skipped, unquantized or a cache format",
        ),
    ),
)

CELLS: Final = Table(
    "cells",
    "source × valid candidate × layer × kv_head × tensor × cell (workload × phase × octave × sampling_id)",
    (
        SOURCE,
        CANDIDATE,
        *_HEAD,
        WORKLOAD,
        PHASE,
        OCTAVE,
        SAMPLING_ID,
        Column("num_vectors", "int64", "rows in the cell"),
        _NUM_VALUES,
        Column("num_nonfinite", "int64", "NaN and inf; in no other column"),
        Column(
            "num_out_of_range",
            "int64",
            "values with |x / scale| > MAX; NULL where the candidate's format has no range",
        ),
        Column(
            "num_clipped",
            "int64",
            "values beyond the point where rounding leaves MAX (464 for e4m3fn); NULL as num_out_of_range is",
        ),
        *_SUMS,
        _MAX_ABS,
    ),
)

GROUPS: Final = Table(
    "groups",
    "source × valid candidate with static scales × layer × kv_head × tensor × workload × phase × sampling_id "
    "× request_group, for intervals; absent where the replay was not asked for them",
    (
        SOURCE,
        CANDIDATE,
        *_HEAD,
        WORKLOAD,
        PHASE,
        SAMPLING_ID,
        Column(
            "request_group",
            "int32",
            "0 to 15: whole requests, by a hash of their number, the same in every run of the trace",
        ),
        Column("num_vectors", "int64", "rows in the group"),
        _NUM_VALUES,
        Column("num_out_of_range", "int64", "as in cells"),
        _CLIPPED_AS_IN_CELLS,
        *_SUMS,
    ),
    since=1,
)

MAGNITUDES: Final = Table(
    "magnitudes",
    "source × tensor × workload × sampling_id × magnitude, all layers and heads together; absent where no "
    "counts were made (a direct replay)",
    (
        SOURCE,
        _TENSOR,
        WORKLOAD,
        SAMPLING_ID,
        Column("magnitude", "float32", "|x|, a finite value of the captured dtype, 0 included"),
        Column("num_values", "int64", "values of that magnitude"),
    ),
    since=1,
)

ORDINARY_CHANNELS: Final = Table(
    "ordinary_channels",
    "source × valid candidate with static scales × layer × kv_head × tensor × workload × sampling_id, of KV "
    "heads in which a few channels, the outliers, hold most of Σ x²; absent where no counts were made (a "
    "direct replay)",
    (
        SOURCE,
        CANDIDATE,
        *_HEAD,
        WORKLOAD,
        SAMPLING_ID,
        Column("channel_count", "int32", "channels of the head that are no outliers"),
        Column("num_values", "int64", "finite values in these channels, as in all that follow"),
        _CLIPPED_AS_IN_CELLS,
        *_SUMS,
        _MAX_ABS,
    ),
    since=3,
)

VECTORS: Final = Table(
    "vectors",
    "source × row × layer × kv_head × tensor; candidate-independent",
    (
        SOURCE,
        Column("row", "int64", "see rows"),
        *_HEAD,
        Column(
            "absmax_code",
            "int32",
            "largest finite magnitude as its 15-bit code (bits without the sign); NULL where there is none",
        ),
        Column("has_nonfinite", "bool_", "whether the vector holds NaN or inf"),
    ),
)

FINDINGS: Final = Table(
    "findings",
    "source × candidate × what an audit of its artifact found",
    (
        SOURCE,
        CANDIDATE,
        Column("ordinal", "int32", "0-based order, errors first"),
        Column("id", "string", "the audit rule's id, such as kv-swapped"),
        Column("severity", "string", "error, warning or note"),
        Column("message", "string", "what is the case"),
        Column("action", "string", "what to do about it"),
        Column(
            "layers",
            "list_int32",
            "layers concerned; NULL: the artifact as a whole",
            retyped=2,
            earlier="string_split(layers, ',')::INTEGER[]",
        ),
        Column("evidence", "string", "JSON object of the numbers that settle it; names carry the unit"),
    ),
)

SWEEP: Final = Table(
    "sweep",
    "source × layer × kv_head × tensor × log2_multiple, all cells together; absent where no counts were made "
    "(a direct replay), no candidate has static scales, or the head has no value but 0",
    (
        SOURCE,
        Column("engine", "string", "numerics replayed: those of the first candidate with static scales"),
        Column("format", "string", "FP8 format, of the same candidate"),
        *_HEAD,
        Column("log2_multiple", "float64", "k: the scale is 2^k times the one that just covers the head"),
        Column("scale", "float32", "dequantization multiplier, 2^k · largest finite |x| / MAX"),
        Column("covered_amax", "float32", "MAX × scale, the largest magnitude in range"),
        _NUM_VALUES,
        _CLIPPED_AS_IN_CELLS,
        *_SUMS,
    ),
)

TABLES: Final = (
    SAMPLING,
    LAYERS,
    REQUESTS,
    ROWS,
    CANDIDATES,
    SCALES,
    CELLS,
    GROUPS,
    MAGNITUDES,
    ORDINARY_CHANNELS,
    VECTORS,
    FINDINGS,
    SWEEP,
    ATTENTION,
    ATTENTION_LAYERS,
)
