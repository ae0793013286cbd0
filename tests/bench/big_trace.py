"""Large traces for measurements: a captured trace's rows, repeated under new request numbers."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from kvtrace_capture.writer import StepRows, TraceWriter

from kvtrace.trace.format import REQUESTS_FILE, SAMPLING_FILE, TRACE_FILE, rank_directory, seal
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE = Path(__file__).parents[2] / "samples/smollm2-135m.kvtrace"
_ROWS_AT_ONCE = 256


def repeat_sample(path: Path, num_bytes: int, source: Path = SAMPLE) -> Path:
    """Write a one-rank trace of at least `num_bytes` of K and V to `path` and return it."""
    trace = open_trace(source)
    (store,) = trace.ranks
    tokens = trace.tokens
    tensors: dict[tuple[int, str], NDArray[np.uint16]] = {}
    for block in trace.blocks():
        key = block.layer.index, block.tensor
        if key not in tensors:
            tensors[key] = np.empty((len(tokens), *block.values.shape[1:]), np.uint16)
        tensors[key][block.row] = block.values
    copies = -(-num_bytes // sum(values.nbytes for values in tensors.values()))
    path.mkdir(parents=True)
    record = trace.record.model_copy(update={"line_commits": False})  # the lines here are written without
    (path / TRACE_FILE).write_text(seal(record))
    shutil.copy(source / SAMPLING_FILE, path / SAMPLING_FILE)
    stride = max(trace.requests) + 1
    requests = [
        record.model_copy(update={"request": copy * stride + record.request})
        for copy in range(copies)
        for record in trace.requests.values()
    ]
    (path / REQUESTS_FILE).write_text("".join(seal(record) + "\n" for record in requests))
    writer = TraceWriter(path / rank_directory(store.rank.rank), store.rank, flush_seconds=3600)
    for copy in range(copies):
        for first in range(0, len(tokens), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            step = StepRows(
                request=tokens.request[rows] + np.int32(copy * stride),
                position=tokens.position[rows],
                sampling_id=tokens.sampling_id[rows],
                step=copy,
                tensors={key: values[rows] for key, values in tensors.items()},
            )
            while not writer.append(step):  # its queue is bounded
                time.sleep(0.01)
    writer.close()
    if writer.failure is not None:
        raise writer.failure
    return path
