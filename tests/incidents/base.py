"""The real captures that incidents are planted in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvtrace.trace.format import RequestRecord, SamplingRecord

SAMPLE = Path(__file__).parents[2] / "samples" / "smollm2-135m.kvtrace"
BASES = (SAMPLE, Path(__file__).with_name("biased.kvtrace"))
"""A small language model, and random weights with outlier key biases, both served by real vLLM."""


@dataclass(frozen=True)
class Base:
    """A captured trace. tensors: (layer, tensor) → float32 [rows, heads, head_dim]."""

    num_layers: int
    tensors: Mapping[tuple[int, str], NDArray[np.float32]]
    requests: tuple[RequestRecord, ...]
    sampling: tuple[SamplingRecord, ...]
    request_of_row: NDArray[np.int64]
    position: NDArray[np.int64]
    workload: NDArray[Any]
    step: NDArray[np.int64]


@cache
def read_base(path: Path) -> Base:
    """Return all of a captured trace; it is read once."""
    trace = open_trace(path)
    tokens = trace.tokens
    requests = [trace.requests[number] for number in tokens.request.tolist()]
    tensors: dict[tuple[int, str], NDArray[np.float32]] = {}
    for block in trace.blocks():
        key = (block.layer.index, block.tensor)
        if key not in tensors:
            tensors[key] = np.zeros((len(tokens), *block.values.shape[1:]), np.float32)
        tensors[key][block.row] = (block.values.astype(np.uint32) << 16).view(np.float32)
    return Base(
        num_layers=trace.record.model.num_layers,
        tensors=tensors,
        requests=tuple(sorted(trace.requests.values(), key=lambda one: one.request)),
        sampling=tuple(trace.sampling.values()),
        request_of_row=tokens.request.astype(np.int64),
        position=tokens.position.astype(np.int64),
        workload=np.array([one.workload for one in requests], dtype=object),
        step=tokens.position - np.array([one.prompt_tokens for one in requests]),
    )
