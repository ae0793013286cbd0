"""Columns that several tables of a run have."""

from __future__ import annotations

from typing import Final

from kvtrace.runs.table import Column

SOURCE: Final = Column("source", "string", "the trace's name, unique in the run")
CANDIDATE: Final = Column("candidate", "string", "the candidate's name, unique in the run")
LAYER: Final = Column("layer", "int32", "the model's layer index")
KV_HEAD: Final = Column("kv_head", "int32", "global KV-head index, before tensor parallelism")
WORKLOAD: Final = Column("workload", "string", "the requests' label")
PHASE: Final = Column("phase", "string", "prefill or decode")
OCTAVE: Final = Column("position_octave", "int32", "floor(log2(position)); position 0 counts with 1")
SAMPLING_ID: Final = Column(
    "sampling_id", "int32", "the sampling rules in force (requests' stride and fraction)"
)
