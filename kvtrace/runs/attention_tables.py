"""The tables of a run that say what candidates do to attention, replayed at the captured queries."""

from __future__ import annotations

from typing import Final

from kvtrace.runs.columns import CANDIDATE, KV_HEAD, LAYER, OCTAVE, PHASE, SOURCE
from kvtrace.runs.table import Column, Table

_REQUEST: Final = Column("request", "int32", "see requests")
_STEP_OCTAVE: Final = Column(
    "step_octave",
    "int32",
    "n: generated tokens 2^n to 2^(n+1) − 1, counted from 1, attend; -1: tokens of the prompt do",
)
_IS_DENSE: Final = Column(
    "is_dense", "bool_", "whether every key was there; else attention is over those that were"
)
_NUM_PROBES: Final = Column("num_probes", "int32", "queries")

ATTENTION: Final = Table(
    "attention",
    "source × valid candidate × layer × query_head × request × phase × position_octave × step_octave; absent "
    "where no queries were captured. o is the output of exact K, V and Q, Δo the candidate's less o",
    (
        SOURCE,
        CANDIDATE,
        LAYER,
        Column("query_head", "int32", "global query-head index, before tensor parallelism"),
        KV_HEAD,
        _REQUEST,
        PHASE,
        OCTAVE,
        _STEP_OCTAVE,
        _IS_DENSE,
        _NUM_PROBES,
        Column("sum_o2", "float64", "Σ ‖o‖²"),
        Column("sum_do2", "float64", "Σ ‖Δo‖²"),
        Column("sum_o_do", "float64", "Σ ⟨o, Δo⟩: over sum_o2 the systematic part, below 0 where o shrinks"),
        Column("sum_do2_k", "float64", "Σ ‖Δo‖² by K alone"),
        Column("sum_do2_v", "float64", "Σ ‖Δo‖² by V alone"),
        Column("sum_do2_q", "float64", "Σ ‖Δo‖² by Q alone; 0 where queries are not quantized"),
        Column("sum_kl", "float64", "Σ KL(attention before ‖ after), nats"),
        Column("sum_fisher", "float64", "Σ variance of the logits' error under attention, nats²"),
        Column("num_flips", "int32", "queries whose largest logit is another key's"),
        Column("sum_top_overlap", "float64", "Σ share of the 8 keys of largest logits that stay among them"),
    ),
    since=4,
)

ATTENTION_LAYERS: Final = Table(
    "attention_layers",
    "source × valid candidate × layer × request × phase × position_octave × step_octave, all query heads "
    "through the layer's output projection W_O; absent where no checkpoint was given",
    (
        SOURCE,
        CANDIDATE,
        LAYER,
        _REQUEST,
        PHASE,
        OCTAVE,
        _STEP_OCTAVE,
        _IS_DENSE,
        _NUM_PROBES,
        Column("projected_o2", "float64", "Σ ‖W_O o‖²"),
        Column("projected_do2", "float64", "Σ ‖W_O Δo‖²"),
    ),
    since=4,
)
