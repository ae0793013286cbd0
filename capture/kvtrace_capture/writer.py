"""Takes the rows of engine steps and appends them to one rank's store from a thread of its own.

The engine's thread only puts references into a queue bounded in bytes. The writer's thread fills a chunk
buffer and commits it when it is full or has waited `flush_seconds`. Nothing here imports vllm or torch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.trace.format import UNUSED_ROW, ArraySpec, DroppedRecord, LayerRecord, RankRecord
from kvtrace_capture.affinity import leave_the_engines_core
from kvtrace_capture.store_files import StoreFiles

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

logger = logging.getLogger("kvtrace.capture")

CHUNK_BUFFER_BYTES: Final = 128 << 20
MAX_ROWS_PER_CHUNK: Final = 4096
MIN_ROWS_PER_CHUNK: Final = 64


def rows_per_chunk(layers: tuple[LayerRecord, ...]) -> int:
    """Return the rows of a chunk: a power of two whose buffer over all arrays stays within 128 MiB.

    Larger chunks read faster; the buffer lives in the serving process, so it is bounded.
    """
    row_bytes = sum(
        len(layer.kv_heads) * (layer.head_dim_k + layer.head_dim_v) * (4 if layer.dtype == "float32" else 2)
        for layer in layers
        if layer.captured
    )
    fitting = CHUNK_BUFFER_BYTES // max(row_bytes, 1)
    power = 1 << max(fitting.bit_length() - 1, 0)
    return min(max(power, MIN_ROWS_PER_CHUNK), MAX_ROWS_PER_CHUNK)


@dataclass(frozen=True, slots=True)
class StepRows:
    """The sampled tokens of one engine step on one rank.

    request, position, sampling_id: [num_rows] int32. step: the engine's step number.
    tensors: (layer index, "k" | "v") → [num_rows, kv_head, head_dim], uint16 bits of bf16/fp16, or float32.
    """

    request: NDArray[np.int32]
    position: NDArray[np.int32]
    sampling_id: NDArray[np.int32]
    step: int
    tensors: dict[tuple[int, str], NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(values.nbytes for values in self.tensors.values())


class TraceWriter:
    """Appends rows to a new `rank-N.zarr`.

    Raises FileExistsError if the store is there: every start has a directory of its own.
    """

    def __init__(
        self,
        store: Path,
        rank: RankRecord,
        *,
        flush_seconds: float = 30.0,
        queue_bytes: int = 256 << 20,
    ) -> None:
        self.failure: str | None = None
        self._rank = rank
        self._flush_seconds = flush_seconds
        self._queue_bytes = queue_bytes
        self._queue: deque[StepRows | DroppedRecord] = deque()
        self._queued_bytes = 0
        self._closing = False
        self._wake = threading.Condition()
        self._files = StoreFiles(store, rank)
        self._buffer = {spec.path: _empty_chunk(spec, rank.rows_per_chunk) for spec in self._files.specs}
        self._filled = 0
        self._oldest_row_at = 0.0
        self._thread = threading.Thread(target=self._run, name="kvtrace-writer", daemon=True)
        self._thread.start()

    def append(self, rows: StepRows) -> bool:
        """Queue one step's rows without waiting. False: the queue is full or the writer has failed.

        The arrays must not change afterwards. The caller counts refused rows with `drop`.
        """
        num_bytes = rows.num_bytes
        with self._wake:
            if self.failure or self._closing or self._queued_bytes + num_bytes > self._queue_bytes:
                return False
            self._queue.append(rows)
            self._queued_bytes += num_bytes
            self._wake.notify()
        return True

    def drop(self, dropped: DroppedRecord) -> None:
        """Note rows that were sampled and are not stored."""
        with self._wake:
            self._queue.append(dropped)
            self._wake.notify()

    def add_hook_seconds(self, seconds: float) -> None:
        """Add time that the engine's own thread spent in the hook; kept in `commit.json`."""
        self._files.cost["hook_s"] += seconds

    def close(self, timeout: float = 60.0) -> None:
        """Write what is queued, seal the last chunk and mark the store as closed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        leave_the_engines_core()
        while True:
            item = self._next_item()
            try:
                if isinstance(item, StepRows):
                    self._take(item)
                elif isinstance(item, DroppedRecord):
                    self._files.append_dropped(item)
                if self._filled and (item is None or self._is_flush_due()):
                    self._write_chunk()
                if item is None and self._closing:
                    if self.failure is None:
                        self._files.close()
                    return
            except Exception as error:  # noqa: BLE001 -- whatever it is, the engine must go on serving
                self._fail(error)
                if self._closing:
                    return

    def _next_item(self) -> StepRows | DroppedRecord | None:
        """Wait for the next item; None when a flush is due or the writer is closing."""
        with self._wake:
            while not self._queue:
                if self._closing or (self._filled and self._is_flush_due()):
                    return None
                wait = self._oldest_row_at + self._flush_seconds - time.monotonic()
                self._wake.wait(max(wait, 0.0) if self._filled else None)
            item = self._queue.popleft()
            if isinstance(item, StepRows):
                self._queued_bytes -= item.num_bytes
            return item

    def _is_flush_due(self) -> bool:
        return time.monotonic() >= self._oldest_row_at + self._flush_seconds

    def _take(self, rows: StepRows) -> None:
        if self.failure:
            self._note_lost(rows.request)
            return
        started, taken = time.monotonic(), 0
        try:
            while taken < len(rows.request):
                taken += self._fill(rows, taken)
                if self._filled == self._rank.rows_per_chunk:
                    self._write_chunk()
        except OSError:
            self._note_lost(rows.request[taken:])
            raise
        finally:
            self._files.cost["write_s"] += time.monotonic() - started

    def _fill(self, rows: StepRows, start: int) -> int:
        """Copy rows from `start` on into the chunk buffer, as many as fit; return how many."""
        if not self._filled:
            self._oldest_row_at = time.monotonic()
        count = min(len(rows.request) - start, self._rank.rows_per_chunk - self._filled)
        here, there = slice(self._filled, self._filled + count), slice(start, start + count)
        self._buffer["rows/kv/request"][here] = rows.request[there]
        self._buffer["rows/kv/position"][here] = rows.position[there]
        self._buffer["rows/kv/sampling_id"][here] = rows.sampling_id[there]
        self._buffer["rows/kv/step"][here] = rows.step
        for (layer, tensor), values in rows.tensors.items():
            self._buffer[f"layers/{layer:02d}/{tensor}"][here] = values[there]
        self._filled += count
        return count

    def _write_chunk(self) -> None:
        self._files.append_chunk(self._buffer, self._filled)
        for spec in self._files.specs:
            _clear_chunk(spec, self._buffer[spec.path])
        self._filled = 0

    def _fail(self, error: Exception) -> None:
        """Stop storing after the first fault: logged once, counted, serving goes on."""
        if self.failure is None:
            self.failure = str(error)
            logger.error("kvtrace: capture stopped, the trace keeps its committed rows: %s", error)
        lost = self._buffer["rows/kv/request"][: self._filled].copy()
        self._filled = 0
        self._note_lost(lost)

    def _note_lost(self, requests: NDArray[np.int32]) -> None:
        numbers, counts = np.unique(requests, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            try:
                self._files.append_dropped(
                    DroppedRecord(request=number, num_rows=count, reason="write_failed")
                )
            except OSError:
                return


def _empty_chunk(spec: ArraySpec, num_rows: int) -> NDArray[Any]:
    chunk = np.zeros((num_rows, *spec.row_shape), dtype=spec.dtype)
    _clear_chunk(spec, chunk)
    return chunk


def _clear_chunk(spec: ArraySpec, chunk: NDArray[Any]) -> None:
    chunk[:] = UNUSED_ROW if spec.path == "rows/kv/request" else 0
