"""A small real trace: requests and layers of the bundled sample, written by the capture's own writers."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from kvtrace_capture.journal import Journal
from kvtrace_capture.lines_file import write_lines
from kvtrace_capture.private_files import write_private
from kvtrace_capture.writer import StepRows, TraceWriter

from kvtrace.trace.format import (
    REQUESTS_FILE,
    SAMPLING_FILE,
    SCHEMA_VERSION,
    TRACE_FILE,
    DroppedRecord,
    RankRecord,
    RequestRecord,
    rank_directory,
    seal,
    unseal,
)
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.trace.reader import Trace

SAMPLE: Final = Path(__file__).parents[2] / "samples/smollm2-135m.kvtrace"
LAYERS: Final = (0, 14, 29)
RANKS: Final = ((0, 1), (2,))
"""Global KV heads of each rank, as tensor parallelism would spread the sample's three."""
ROWS_PER_CHUNK: Final = 64


def write_small_trace(path: Path, num_rows: int = 150) -> Path:
    """Write about `num_rows` real rows of 3 layers, on two ranks, and return the path.

    Beside them stand what a reader must settle: a row written twice, one beyond its request's end, one whose
    request has no record, a request that still runs, two sets of sampling rules, and rows counted as dropped.
    """
    sample = open_trace(SAMPLE)
    requests = _some_requests(sample, num_rows)
    rows = np.flatnonzero(np.isin(sample.ranks[0].rows["request"], requests))
    tensors = {key: values[rows] for key, values in sample_tensors(sample, LAYERS).items()}
    columns = {name: values[rows] for name, values in sample.ranks[0].rows.items()}
    columns["sampling_id"] = np.where(columns["request"] == requests[1], 1, 0).astype(np.int32)
    path.mkdir(parents=True)
    _write_records(path, sample, requests)
    for rank, heads in enumerate(RANKS):
        record = rank_record(sample, LAYERS, rank=rank, heads=heads)
        writer = TraceWriter(path / rank_directory(rank), record, flush_seconds=3600)
        first, running = requests[0], requests[-1] + 1
        twice = (first, int(columns["position"][columns["request"] == first][0]))
        extra = [twice, (first, 8000), (900, 0), (running, 4), (running, 32)]
        for step in (*_steps(columns, tensors, heads), _odd_step(extra, columns, tensors, heads)):
            assert writer.append(step)
        writer.drop(DroppedRecord(request=requests[1], num_rows=2, reason="queue_full"))
        writer.close()
        assert writer.failure is None
    return path


def sample_tensors(sample: Trace, layers: Sequence[int]) -> dict[tuple[int, str], NDArray[Any]]:
    """Return (layer, "k" | "v") → [row, kv_head, head_dim], the sample's bits."""
    store = sample.ranks[0]
    return {
        (layer.index, tensor): np.concatenate([store.read_chunk(spec, c) for c in range(store.num_chunks)])
        for layer, tensor, spec in store.tensor_specs()
        if layer.index in layers
    }


def rank_record(sample: Trace, layers: Sequence[int], *, rank: int, heads: Sequence[int]) -> RankRecord:
    """Return one rank's record: the sample's layers with some heads, `layers` of them captured."""
    record = sample.ranks[0].rank
    return record.model_copy(
        update={
            "rank": rank,
            "tp_rank": rank,
            "rows_per_chunk": ROWS_PER_CHUNK,
            "layers": tuple(
                layer.model_copy(update={"captured": layer.index in layers, "kv_heads": tuple(heads)})
                for layer in record.layers
            ),
        }
    )


def _some_requests(sample: Trace, num_rows: int) -> list[int]:
    """Return requests of every workload, in turn, until they have as many rows."""
    numbers, counts = np.unique(sample.tokens.request, return_counts=True)
    count = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    by_workload: dict[str, list[int]] = {}
    for number in sorted(count):
        by_workload.setdefault(sample.requests[number].workload, []).append(number)
    chosen: list[int] = []
    while sum(count[n] for n in chosen) < num_rows:
        chosen += [numbers.pop(0) for numbers in by_workload.values() if numbers]
    return sorted(chosen)


def _write_records(path: Path, sample: Trace, requests: Sequence[int]) -> None:
    engine = sample.record.engine.model_copy(update={"tensor_parallel_size": len(RANKS)})
    record = sample.record.model_copy(
        update={"engine": engine, "line_commits": True, "schema_version": SCHEMA_VERSION}
    )
    write_private(path / TRACE_FILE, seal(record, indent=1))
    rules = sample.sampling[0]
    write_lines(path / SAMPLING_FILE, [seal(rules), seal(rules.model_copy(update={"sampling_id": 1}))])
    journal = Journal(path / REQUESTS_FILE)
    for line in (SAMPLE / REQUESTS_FILE).read_bytes().splitlines():
        request = unseal(line, RequestRecord)
        if request.request == requests[0]:
            request = request.model_copy(update={"preemptions": 1})  # one of its rows is written twice
        if request.request == requests[1]:
            request = request.model_copy(update={"sampling_id": 1})
        if request.request in requests:
            journal.append(seal(request))
    running = sample.requests[requests[-1]].model_dump() | {
        "request": requests[-1] + 1, "status": "running", "output_tokens": 0, "computed_tokens": 0,
    }  # fmt: skip
    journal.append(seal(RequestRecord.model_validate(running)))
    journal.close()


def _steps(
    columns: dict[str, NDArray[Any]], tensors: dict[tuple[int, str], NDArray[Any]], heads: Sequence[int]
) -> list[StepRows]:
    steps = []
    for step, group in groupby(range(len(columns["step"])), key=lambda row: int(columns["step"][row])):
        rows = list(group)
        steps.append(
            StepRows(
                request=columns["request"][rows],
                position=columns["position"][rows],
                sampling_id=columns["sampling_id"][rows],
                step=step,
                tensors={key: values[rows][:, list(heads)] for key, values in tensors.items()},
            )
        )
    return steps


def _odd_step(
    tokens: Sequence[tuple[int, int]],
    columns: dict[str, NDArray[Any]],
    tensors: dict[tuple[int, str], NDArray[Any]],
    heads: Sequence[int],
) -> StepRows:
    """Return a last step with the given (request, position), whose values are other rows'."""
    rows = list(range(5, 5 + len(tokens)))
    return StepRows(
        request=np.array([request for request, _ in tokens], dtype=np.int32),
        position=np.array([position for _, position in tokens], dtype=np.int32),
        sampling_id=np.zeros(len(tokens), dtype=np.int32),
        step=int(columns["step"].max()) + 1,
        tensors={key: values[rows][:, list(heads)] for key, values in tensors.items()},
    )
