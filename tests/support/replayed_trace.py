"""A trace of two requests under two sampling rules, and what a run of it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from kvtrace.trace.format import SamplingRecord
from kvtrace.trace.reader import open_trace
from support.fabricate import fabricate_trace, request

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace

LAYERS, HEADS, HEAD_DIM = 2, 3, 16
# Request 0: 40 prompt tokens and 10 generated; request 1: 20 prompt tokens of another workload.
REQUEST_OF_ROW = [0] * 50 + [1] * 20
POSITION_OF_ROW = [*range(50), *range(20)]
REQUESTS = [
    request(0, prompt_tokens=40, output_tokens=10),
    request(1, prompt_tokens=20, workload="code", sampling_id=1),
]
SAMPLING = [
    SamplingRecord(sampling_id=0, started_at=1.0, position_stride=1),
    SamplingRecord(sampling_id=1, started_at=2.0, position_stride=16, request_fraction=0.5),
]


def octave(position: int) -> int:
    return max(position, 1).bit_length() - 1


CELL_OF_ROW = [
    ("code" if r else "chat", "decode" if r == 0 and p >= 40 else "prefill", octave(p), r)
    for r, p in zip(REQUEST_OF_ROW, POSITION_OF_ROW, strict=True)
]
GIVEN = {
    (layer, head, tensor): 0.001 * (1 + layer) * (1 + head) * (3 if tensor == "v" else 1)
    for layer in range(LAYERS)
    for head in range(HEADS)
    for tensor in "kv"
}


def make_tensors(seed: int = 0) -> dict[tuple[int, str], Any]:
    random = np.random.default_rng(seed)
    shape = (len(REQUEST_OF_ROW), HEADS, HEAD_DIM)
    tensors = {
        (layer, t): random.standard_t(3, shape).astype(np.float32) for layer in range(LAYERS) for t in "kv"
    }
    special = tensors[0, "k"]
    special[3, 1, :6] = [np.nan, np.inf, -np.inf, -0.0, 1e-40, -3e-39]
    special[4, 1, :] = np.nan  # a vector without any finite value
    special[5, 2, :] = 0.0
    return tensors


def make_trace(path: Path, tensors: dict[tuple[int, str], Any], **options: Any) -> Trace:
    options = {"request_of_row": REQUEST_OF_ROW, "position_of_row": POSITION_OF_ROW} | options
    return open_trace(fabricate_trace(path, tensors, requests=REQUESTS, sampling=SAMPLING, **options))


def rows_of(run: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(run / f"{table}.parquet").to_pylist()  # type: ignore[no-any-return]


def found_cells(run: Path, candidate: str) -> dict[tuple[Any, ...], dict[str, float]]:
    keys = ("layer", "kv_head", "tensor", "workload", "phase", "position_octave", "sampling_id")
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows_of(run, "cells"):
        if row["candidate"] == candidate:
            key = tuple(row[k] for k in keys)
            assert key not in found
            found[key] = row
    return found
