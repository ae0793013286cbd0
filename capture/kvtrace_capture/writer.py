"""Takes the rows of engine steps and appends them to one rank's store from a thread of its own.

The engine's thread only puts references into a queue bounded in bytes. The writer's thread fills a chunk
buffer and commits it when it is full or has waited `flush_seconds`. Nothing here imports vllm or torch.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from kvtrace.trace.format import UNUSED_ROW, ArraySpec, DroppedRecord, RankRecord, array_specs, row_column
from kvtrace_capture.affinity import leave_the_engines_core
from kvtrace_capture.losses import Losses
from kvtrace_capture.queue_room import QueueRoom
from kvtrace_capture.store_files import StoreFiles

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.trace.attention_format import ResidualRecord

logger = logging.getLogger("kvtrace.capture")

CHUNK_BUFFER_BYTES: Final = 128 << 20
MAX_ROWS_PER_CHUNK: Final = 4096
MIN_ROWS_PER_CHUNK: Final = 64


def rows_per_chunk(rank: RankRecord, buffer_bytes: int = CHUNK_BUFFER_BYTES) -> int:
    """Return the rows of a chunk: a power of two whose buffer over all tensors stays within `buffer_bytes`.

    Larger chunks read faster; the buffer lives in the serving process, so it is bounded.
    """
    row_bytes = sum(
        math.prod(spec.row_shape) * (4 if spec.dtype == "float32" else 2)
        for spec in array_specs(rank)
        if spec.row_shape
    )
    fitting = buffer_bytes // max(row_bytes, 1)
    power = 1 << max(fitting.bit_length() - 1, 0)
    return min(max(power, MIN_ROWS_PER_CHUNK), MAX_ROWS_PER_CHUNK)


@dataclass(frozen=True, slots=True)
class StepRows:
    """The captured tokens of one engine step in one store.

    request, position, sampling_id: [num_rows] int32. step: the engine's step number.
    tensors: (layer index, "k" | "v" | "q" | "o") → [num_rows, head, head_dim], uint16 bits of bf16/fp16, or
    float32.
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
    """Appends rows to a new `rank-N.zarr`, `context-N.zarr` or `queries-N.zarr`.

    room: for the rows that wait, shared by the writers of a rank.
    Raises FileExistsError if the store is there: every start has a directory of its own.
    """

    def __init__(
        self,
        store: Path,
        rank: RankRecord,
        *,
        flush_seconds: float = 30.0,
        room: QueueRoom | None = None,
    ) -> None:
        self.failure: str | None = None
        self._rank = rank
        self._flush_seconds = flush_seconds
        self._room = room or QueueRoom()
        self._queue: deque[StepRows | threading.Event | Literal["losses"]] = deque()
        self._closing = False
        self._wake = threading.Condition()
        self._files = StoreFiles(store, rank)
        self._buffer = {spec.path: _buffer(spec, rank.rows_per_chunk) for spec in self._files.specs}
        self._columns = {
            name: self._buffer[row_column(rank, name)]
            for name in ("request", "position", "sampling_id", "step")
        }
        self._tensor_buffers = {
            (int(layer), tensor): self._buffer[spec.path]
            for spec in self._files.specs
            if spec.row_shape
            for _, layer, tensor in [spec.path.split("/")]
        }
        self._filled = 0
        self._oldest_row_at = 0.0
        self._losses = Losses()
        self._is_loss_queued = False
        self._thread = threading.Thread(target=self._run, name="kvtrace-writer", daemon=True)
        self._thread.start()

    @property
    def queue_bytes(self) -> int:
        """Return the bytes of rows that may wait."""
        return self._room.num_bytes

    def has_room(self, num_bytes: int) -> bool:
        """Return whether rows of so many bytes would be queued now."""
        return not (self.failure or self._closing) and self._room.has(num_bytes)

    def append(self, rows: StepRows) -> bool:
        """Queue one step's rows without waiting. False: the queue is full or the writer has failed.

        The arrays must not change afterwards. The caller counts refused rows with `drop`.
        """
        with self._wake:
            if self.failure or self._closing or not self._room.take(rows.num_bytes):
                return False
            self._queue.append(rows)
            self._wake.notify()
        return True

    def drop(self, dropped: DroppedRecord) -> None:
        """Note rows that were sampled and are not stored."""
        self._losses.add(dropped)
        with self._wake:
            if not self._is_loss_queued:
                self._is_loss_queued = True
                self._queue.append("losses")
                self._wake.notify()

    def flush(self, timeout: float = 60.0) -> None:
        """Write and commit what is queued now, and wait for it."""
        if not self._thread.is_alive():
            return
        is_done = threading.Event()
        with self._wake:
            self._queue.append(is_done)
            self._wake.notify()
        is_done.wait(timeout)

    def add_hook_seconds(self, hook_s: float, copy_s: float) -> None:
        """Add time that the engine's own thread spent in the hook, and in copies there; in `commit.json`."""
        self._files.cost["hook_s"] += hook_s
        self._files.cost["copy_s"] += copy_s

    def note_residual(self, records: tuple[ResidualRecord, ...]) -> None:
        """Let the next commit say what attention adds to the residual stream, by layer."""
        self._files.residual = records

    def close(self, timeout: float = 60.0) -> None:
        """Write what is queued, seal the last chunk and mark the store as closed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        leave_the_engines_core()
        while not self._is_drained():
            self._handle(self._next_item())
        self._finish()

    def _is_drained(self) -> bool:
        """Return whether all that there will ever be is written: rows may come while a chunk is committed."""
        with self._wake:
            return self._closing and not self._queue and not self._filled

    def _handle(self, item: StepRows | threading.Event | Literal["losses"] | None) -> None:
        """Store or count one item. item: None where a flush is due."""
        try:
            if isinstance(item, StepRows):
                self._take(item)
            is_asked = isinstance(item, threading.Event)
            if self._filled and (item is None or is_asked or self._is_flush_due()):
                self._write_chunk()
            if self._losses and not self._queue:
                self._write_losses()
        except BaseException as error:  # noqa: BLE001 -- whatever it is, what waits must be counted as lost
            self._fail(error)
        if isinstance(item, threading.Event):
            item.set()

    def _finish(self) -> None:
        """Write what a reader must know of the end, as far as the disk still takes it."""
        self._write_losses()
        try:
            if self.failure is None:
                self._files.close()
            else:
                self._files.note_failure(self.failure)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the log must say what the trace cannot
            if self.failure is None:
                self._fail(error)
        if uncounted := self._losses.num_rows:
            logger.error("kvtrace: %d rows are lost that the trace could not count", uncounted)

    def _next_item(self) -> StepRows | threading.Event | Literal["losses"] | None:
        """Wait for the next item; None when a flush is due or the writer is closing."""
        with self._wake:
            while not self._queue:
                if self._closing or (self._filled and self._is_flush_due()):
                    return None
                wait = self._oldest_row_at + self._flush_seconds - time.monotonic()
                self._wake.wait(max(wait, 0.0) if self._filled else None)
            item = self._queue.popleft()
            if isinstance(item, StepRows):
                self._room.give_back(item.num_bytes)
            elif item == "losses":
                self._is_loss_queued = False
            return item

    def _is_flush_due(self) -> bool:
        return time.monotonic() >= self._oldest_row_at + self._flush_seconds

    def _take(self, rows: StepRows) -> None:
        if self.failure:
            self._note_lost(rows.request)
            return
        taken = 0
        try:
            while taken < len(rows.request):
                taken += self._fill(rows, taken)
                if self._filled == self._rank.rows_per_chunk:
                    self._write_chunk()
            if self._losses and not self._queue:
                self._write_losses()
        except BaseException:
            self._note_lost(rows.request[taken:])
            raise

    def _fill(self, rows: StepRows, start: int) -> int:
        """Copy rows from `start` on into the chunk buffer, as many as fit; return how many."""
        started = time.monotonic()
        if not self._filled:
            self._oldest_row_at = started
        count = min(len(rows.request) - start, self._rank.rows_per_chunk - self._filled)
        here, there = slice(self._filled, self._filled + count), slice(start, start + count)
        self._columns["request"][here] = rows.request[there]
        self._columns["position"][here] = rows.position[there]
        self._columns["sampling_id"][here] = rows.sampling_id[there]
        self._columns["step"][here] = rows.step
        for key, values in rows.tensors.items():
            self._tensor_buffers[key][here] = values[there]
        self._filled += count
        self._files.cost["write_s"] += time.monotonic() - started
        return count

    def _write_chunk(self) -> None:
        for values in self._buffer.values():
            values[self._filled :] = 0
        self._columns["request"][self._filled :] = UNUSED_ROW
        self._files.append_chunk(self._buffer, self._filled)
        self._filled = 0
        if self._losses:
            self._write_losses()

    def _fail(self, error: BaseException) -> None:
        """Stop storing after the first fault: logged once, counted, serving goes on."""
        if self.failure is None:
            self.failure = str(error) or type(error).__name__
            logger.error("kvtrace: capture stopped, the trace keeps its committed rows: %s", self.failure)
            with contextlib.suppress(Exception):
                self._files.note_failure(self.failure)
        lost = self._columns["request"][: self._filled].copy()
        self._filled = 0
        self._note_lost(lost)

    def _note_lost(self, requests: NDArray[np.int32]) -> None:
        numbers, counts = np.unique(requests, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._losses.add(DroppedRecord(request=number, num_rows=count, reason="write_failed"))
        self._write_losses()

    def _write_losses(self) -> None:
        """Count lost rows in dropped.jsonl. What a full disk does not take is tried again with the next."""
        with contextlib.suppress(Exception):
            self._losses.write(self._files.append_dropped, self._files.commit_dropped)


def _buffer(spec: ArraySpec, num_rows: int) -> NDArray[Any]:
    """Return room for one chunk; it takes memory when rows come, so none while capture is switched off."""
    return np.zeros((num_rows, *spec.row_shape), dtype=spec.dtype)
