"""A process that does what a serving engine does to the capture: hands over real steps, one after the other.

Processes are forked from a server that has the sample's tensors in memory, so that a hundred start quickly.
Everything that is handed over can be told from its request and position: `expected_vector`.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from kvtrace_capture.drop_tally import DropTally
from kvtrace_capture.journal import Journal
from kvtrace_capture.lines_file import write_lines
from kvtrace_capture.privacy import key_id, load_or_make_key
from kvtrace_capture.private_files import write_private
from kvtrace_capture.queue_room import QueueRoom
from kvtrace_capture.store_files import StoreFiles
from kvtrace_capture.writer import StepRows, TraceWriter

from faults.small_trace import SAMPLE, rank_record, sample_tensors
from kvtrace.trace.capture_names import KEY_FILE
from kvtrace.trace.format import REQUESTS_FILE, SAMPLING_FILE, TRACE_FILE, rank_directory, seal
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.trace.format import RequestRecord
    from kvtrace.trace.reader import Trace

LAYERS: Final = (0, 14, 29)
HEADS: Final = (0, 1, 2)
ROUND: Final = 1000
"""The sample's requests come again and again; round n numbers them from n × 1000."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a process does, besides handing over steps until it is told to stop."""

    trace: Path
    reports: Path
    """A file of its own, in which it says what it handed over and what it knows to be committed."""
    max_rows: int | None = None
    flush_seconds: float = 0.02
    queue_bytes: int = 64 << 20
    seconds_between_steps: float = 0.0
    seconds_a_chunk: float = 0.0
    """A disk that slow: every chunk takes so much longer."""
    dies_at_chunk: int | None = None
    """The writer's thread is hit by SystemExit there."""
    clock: tuple[float, ...] = ()
    """`time.time` jumps by these seconds, in turn, at every step."""
    user: int | None = None
    """Give root's rights up: for a user, permissions hold."""
    pauses_at_rows: int | None = None
    """Wait there until the file `reports` + `.go` is there."""
    waits_before_close: bool = False
    """The same before the end."""


def start(job: Job) -> multiprocessing.process.BaseProcess:
    """Start the process and return it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faults.warm"])
    process = context.Process(target=feed, args=(job,), daemon=True)  # none outlives a test that fails
    process.start()
    return process


@cache
def sample() -> Trace:
    """Return the bundled sample, opened."""
    return open_trace(SAMPLE)


@cache
def tensors() -> dict[tuple[int, str], NDArray[Any]]:
    """Return (layer, tensor) → the sample's bits, [row, kv_head, head_dim]."""
    return sample_tensors(sample(), LAYERS)


@cache
def row_of_token() -> dict[tuple[int, int], int]:
    """Return the sample's row of every (request, position)."""
    rows = sample().ranks[0].rows
    return {
        (request, position): row
        for row, (request, position) in enumerate(
            zip(rows["request"].tolist(), rows["position"].tolist(), strict=True)
        )
        if request >= 0
    }


def expected_vectors(request: int, position: int, layer: int, tensor: str) -> NDArray[Any]:
    """Return what was handed over for a token, [kv_head, head_dim]."""
    found: NDArray[Any] = tensors()[layer, tensor][row_of_token()[request % ROUND, position]]
    return found


def feed(job: Job) -> None:
    """Hand over the sample's steps until `max_rows`, or for ever; then close in order."""
    logging.basicConfig(filename=f"{job.reports}.log", format="%(levelname)s %(message)s")
    if job.user is not None:
        os.setuid(job.user)
    _slow_down(job)
    with job.reports.open("w", buffering=1) as reports:
        try:
            _Feeding(job, reports).run()
        except FileExistsError:
            sys.exit(3)


class _Feeding:
    def __init__(self, job: Job, reports: Any) -> None:
        self._job, self._reports = job, reports
        self._write_records()
        record = rank_record(sample(), LAYERS, rank=0, heads=HEADS)
        self._writer = TraceWriter(
            job.trace / rank_directory(0),
            record,
            flush_seconds=job.flush_seconds,
            room=QueueRoom(job.queue_bytes),
        )
        self._dropped = DropTally(self._writer.drop)
        self._journal = Journal(job.trace / REQUESTS_FILE)
        self._committed = job.trace / rank_directory(0) / "commit.json"
        self._handed = self._refused = self._largest_queue = 0

    def run(self) -> None:
        """Do the job. What is said in `reports` is flushed line by line: it outlives a kill."""
        job, clock, pauses_at = self._job, 0, self._job.pauses_at_rows
        self._say(started=True, key=key_id(load_or_make_key(self._job.trace.parent / KEY_FILE)))
        for rows in _steps():
            if job.max_rows is not None and self._handed + self._refused >= job.max_rows:
                break
            if pauses_at is not None and self._handed >= pauses_at:
                self._wait()
                pauses_at = None
            if job.clock:
                _jump(job.clock[clock % len(job.clock)])
                clock += 1
            self._hand_over(rows)
            self._say(handed=self._handed, refused=self._refused, committed=self._num_committed())
            if job.seconds_between_steps:
                time.sleep(job.seconds_between_steps)
        if job.waits_before_close:
            self._wait()
        self._dropped.pass_on()
        self._writer.close()
        self._journal.close()
        self._say(
            handed=self._handed, refused=self._refused, committed=self._num_committed(), ended=True,
            failure=self._writer.failure, largest_queue=self._largest_queue, lost_lines=self._journal.lost,
        )  # fmt: skip

    def _hand_over(self, rows: StepRows) -> None:
        for number in dict.fromkeys(rows.request.tolist()):
            for request in _records(number, rows):
                self._journal.append(seal(request))
        if self._writer.append(rows):
            self._handed += len(rows.request)
        else:
            self._refused += len(rows.request)
            self._dropped.add(rows.request, "write_failed" if self._writer.failure else "queue_full")
            self._dropped.pass_on_if_due()
        self._largest_queue = max(self._largest_queue, self._writer._room._taken)

    def _num_committed(self) -> int:
        try:
            chunks = json.loads(self._committed.read_bytes())["chunks"]
        except OSError:
            return -1
        return sum(chunk["num_rows"] for chunk in chunks)

    def _write_records(self) -> None:
        self._job.trace.mkdir(exist_ok=True, mode=0o700)
        record = sample().record.model_copy(update={"line_commits": True, "created_at": time.time()})
        write_private(self._job.trace / TRACE_FILE, seal(record, indent=1))
        write_lines(self._job.trace / SAMPLING_FILE, [seal(rules) for rules in sample().sampling.values()])

    def _wait(self) -> None:
        self._say(waits=True)
        go = Path(f"{self._job.reports}.go")
        while not go.exists():
            time.sleep(0.01)
        go.unlink()

    def _say(self, **what: Any) -> None:
        self._reports.write(json.dumps({**what, "memory_bytes": _resident_bytes()}) + "\n")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _steps() -> Iterator[StepRows]:
    """Yield the sample's steps for ever: real rows, in the order in which the engine computed them."""
    rows = sample().ranks[0].rows
    used = np.flatnonzero(rows["request"] >= 0)
    steps = np.split(used, np.flatnonzero(np.diff(rows["step"][used])) + 1)
    number = 0
    while True:
        for step in steps:
            yield StepRows(
                request=(rows["request"][step] + number // len(steps) * ROUND).astype(np.int32),
                position=rows["position"][step],
                sampling_id=rows["sampling_id"][step],
                step=number,
                tensors={key: values[step] for key, values in tensors().items()},
            )
            number += 1


@cache
def _first_and_last_position() -> dict[int, tuple[int, int]]:
    ends: dict[int, tuple[int, int]] = {}
    for request, position in row_of_token():
        first, last = ends.get(request, (position, position))
        ends[request] = min(first, position), max(last, position)
    return ends


def _records(number: int, rows: StepRows) -> Iterator[RequestRecord]:
    """Yield a request's arrival with its first row, and its end with its last."""
    record = sample().requests[number % ROUND].model_copy(update={"request": number})
    positions = rows.position[rows.request == number].tolist()
    first, last = _first_and_last_position()[number % ROUND]
    if first in positions:
        running = {"status": "running", "output_tokens": 0, "computed_tokens": 0, "missing": ()}
        yield record.model_copy(update={**running, "arrived_at": time.time()})
    if last in positions:
        yield record


def _slow_down(job: Job) -> None:
    """Make the disk slow, or the writer's thread die, as the job says, around the writer's own code."""
    append_chunk = StoreFiles.append_chunk

    def slow(files: StoreFiles, *arguments: Any) -> None:
        time.sleep(job.seconds_a_chunk)
        if len(files._commits) == job.dies_at_chunk:
            raise SystemExit("the writer's thread was told to die")
        append_chunk(files, *arguments)

    if job.seconds_a_chunk or job.dies_at_chunk is not None:
        StoreFiles.append_chunk = slow  # type: ignore[method-assign]


_true_time = time.time
_shifted = [0.0]


def _jump(seconds: float) -> None:
    """Let the wall clock jump. `time.monotonic` goes on, as the kernel's does when somebody sets the date."""
    _shifted[0] += seconds
    time.time = lambda: _true_time() + _shifted[0]  # type: ignore[assignment]
