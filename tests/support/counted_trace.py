"""A small trace to count, and how a direct replay of it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.runs.record import RunRecord
from kvtrace.trace.format import unseal
from kvtrace.trace.reader import open_trace
from support.fabricate import fabricate_trace, request

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace

CPU = "cpu"
ROWS, HEADS, HEAD_DIM = 60, 3, 8
REQUESTS = [
    request(0, prompt_tokens=30, output_tokens=10),
    request(1, prompt_tokens=20, workload="code"),
]


def make_trace(path: Path, tensors: dict[tuple[int, str], Any] | None = None, **options: Any) -> Trace:
    options = {
        "request_of_row": [0] * 40 + [1] * 20,
        "position_of_row": [*range(40), *range(20)],
        "requests": REQUESTS,
        "rows_per_chunk": 16,
    } | options
    return open_trace(fabricate_trace(path, tensors or normal_tensors(), **options))


def normal_tensors(seed: int = 0) -> dict[tuple[int, str], Any]:
    random = np.random.default_rng(seed)
    return {
        (layer, t): random.normal(0, 3, (ROWS, HEADS, HEAD_DIM)).astype(np.float32)
        for layer in range(2)
        for t in "kv"
    }


def apply_keys(trace: Trace) -> list[tuple[int, int, str]]:
    return [(n, h, t) for n, layer in trace.layers.items() for h in layer.kv_heads for t in "kv"]


def source_of(run: Path) -> Any:
    return unseal((run / "run.json").read_bytes(), RunRecord).sources[0]
