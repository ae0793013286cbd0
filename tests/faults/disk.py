"""What a disk, a clock or a thread can do to a running capture: real processes, one fault each."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from kvtrace_capture.trace_directory import make_trace_directory

from faults.feeding import Job, start
from faults.scratch import small_disk
from faults.stored import Stored, check_stored, reports
from kvtrace.trace.format import REQUESTS_FILE
from kvtrace.trace.requests import read_lines_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

NOBODY: Final = 65534
STOPPED: Final = "capture stopped, the trace keeps its committed rows"
_DISK_BYTES: Final = 2_600_000
_FILLER_BYTES: Final = 400_000


def disk_full(folder: Path) -> str:
    """A disk fills up and stays full."""
    with small_disk(folder / "disk", _DISK_BYTES) as disk:
        job = Job(disk / "t.kvtrace", folder / "reports", max_rows=4000, seconds_between_steps=0.0005)
        said = _run(job)
        stored = check_stored(job.trace)
        assert "No space left" in said["failure"]
        assert _logged(job, STOPPED) == 1
        assert 0 < stored.num_rows < 4000
        assert not stored.closed
        assert _all_told(stored, said), f"{stored.num_rows} + {stored.num_dropped} rows of {said}"
        assert "No space left" in (stored.failure or "")
    return f"{_rows(stored, said)}, every lost row counted; logged once"


def disk_full_for_a_while(folder: Path) -> str:
    """A disk fills up, and has space again before the engine stops."""
    with small_disk(folder / "disk", _DISK_BYTES) as disk:
        filler = disk / "filler"
        filler.write_bytes(b"x" * _FILLER_BYTES)
        job = Job(disk / "t.kvtrace", folder / "reports", max_rows=4000, seconds_between_steps=0.0005,
                  waits_before_close=True)  # fmt: skip
        process = start(job)
        _wait_until(process, lambda: reports(job.reports).get("waits"))
        filler.unlink()
        said = _go_on(job, process)
        stored = check_stored(job.trace)
        assert _logged(job, STOPPED) == 1
        assert _all_told(stored, said), f"{stored.num_rows} + {stored.num_dropped} rows of {said}"
        assert "No space left" in (stored.failure or "")
        assert "a writer stopped storing" in stored.text
        commit = read_lines_commit(job.trace / REQUESTS_FILE)
        assert commit is not None
        assert commit.num_lost == said["lost_lines"]
    return f"{_rows(stored, said)}, every lost row counted; logged once"


def directory_removed(folder: Path) -> str:
    """Somebody removes the trace's directory."""
    job = Job(folder / "t.kvtrace", folder / "reports", max_rows=3000, pauses_at_rows=600)
    process = start(job)
    _wait_until(process, lambda: reports(job.reports).get("waits"))
    job.trace.rename(folder / "removed")  # at once: the writer may be at work in it
    shutil.rmtree(folder / "removed", ignore_errors=True)
    said = _go_on(job, process)
    assert "No such file" in said["failure"]
    assert _logged(job, STOPPED) == 1
    assert _logged(job, "lines of") == 1
    assert said["refused"] > 0
    assert not job.trace.exists(), "the capture made the directory again"
    return f"{said['refused']} rows refused; nothing was made again; logged once"


def directory_read_only(folder: Path) -> str:
    """A directory may no longer be written, and then may again."""
    folder.chmod(0o777)
    folder.parent.chmod(0o755)
    user = NOBODY if os.geteuid() == 0 else None
    job = Job(folder / "t.kvtrace", folder / "reports", max_rows=3000, pauses_at_rows=600,
              waits_before_close=True, user=user)  # fmt: skip
    process = start(job)
    _wait_until(process, lambda: reports(job.reports).get("waits"))
    folders = [path for path in (job.trace, *job.trace.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o500)
    _tell(job)
    _wait_until(process, lambda: reports(job.reports)["handed"] + reports(job.reports)["refused"] >= 3000)
    for path in folders:
        path.chmod(0o700)
    time.sleep(0.2)
    said = _go_on(job, process)
    stored = check_stored(job.trace)
    assert "Permission denied" in said["failure"]
    assert _logged(job, STOPPED) == 1
    assert _all_told(stored, said)
    with pytest.raises(OSError, match="/proc"):
        make_trace_directory(Path("/proc"), "0123456789ab")
    return f"{_rows(stored, said)}, every lost row counted; logged once; at the start it is refused"


def slow_disk(folder: Path) -> str:
    """A disk that takes 30 ms longer for every chunk than the engine needs to fill ten."""
    limit = 400_000
    job = Job(folder / "t.kvtrace", folder / "reports", max_rows=60_000, seconds_a_chunk=0.03,
              queue_bytes=limit, flush_seconds=3600)  # fmt: skip
    said = _run(job)
    stored = check_stored(job.trace)
    assert said["refused"] > 0
    assert said["largest_queue"] <= limit
    assert _all_told(stored, said)
    assert stored.closed
    memory = _memory(job)
    growth = memory[-1] - memory[len(memory) // 4]
    assert growth < 8 << 20, f"memory grew by {growth:,} bytes"
    return (
        f"{_rows(stored, said)}, every dropped row counted; the queue held at most "
        f"{said['largest_queue']:,} of {limit:,} bytes; memory grew by {max(growth, 0) / 1e6:.1f} MB"
    )


def two_engines(folder: Path) -> str:
    """Two engines start at once in one directory, and one more tries a trace that is there."""
    jobs = [
        Job(make_trace_directory(folder, f"{number:012x}"), folder / f"reports-{number}", max_rows=2000)
        for number in range(2)
    ]
    processes = [start(job) for job in jobs]
    intruder = Job(jobs[0].trace, folder / "reports-intruder", max_rows=10)
    _wait_until(processes[0], lambda: reports(jobs[0].reports)["committed"] > 0)
    late = start(intruder)
    for process in (*processes, late):
        process.join()
    assert late.exitcode, "a second writer took a store that was there"
    assert len({job.trace for job in jobs}) == 2
    assert len({reports(job.reports)["key"] for job in jobs}) == 1
    for job in jobs:
        stored = check_stored(job.trace)
        assert stored.closed
        assert _all_told(stored, reports(job.reports))
    return "both traces whole, one hash key; a third start into the first trace is refused"


def clock_jumps(folder: Path) -> str:
    """The wall clock jumps back and forth by more than a year."""
    day = 86_400.0
    job = Job(
        folder / "t.kvtrace", folder / "reports", max_rows=2000, clock=(400 * day, -500 * day, -3600.0, 3.0)
    )
    said = _run(job)
    stored = check_stored(job.trace)
    assert stored.closed
    assert stored.num_rows == said["handed"]
    assert not stored.num_dropped
    return f"{_rows(stored, said)}, closed in order (time.time patched in the process)"


def writer_dies(folder: Path) -> str:
    """The writer's thread is hit by SystemExit in the middle of a chunk."""
    job = Job(folder / "t.kvtrace", folder / "reports", max_rows=3000, dies_at_chunk=4, flush_seconds=3600)
    said = _run(job)
    stored = check_stored(job.trace)
    assert stored.num_rows == 4 * 64
    assert _logged(job, STOPPED) == 1
    assert stored.failure == "the writer's thread was told to die"
    assert _all_told(stored, said)
    return f"{_rows(stored, said)}, every lost row counted; logged once"


FAULTS: Final = (
    disk_full,
    disk_full_for_a_while,
    directory_removed,
    directory_read_only,
    slow_disk,
    two_engines,
    clock_jumps,
    writer_dies,
)


def _run(job: Job) -> dict[str, Any]:
    process = start(job)
    process.join(120)
    assert process.exitcode == 0, f"the process ended with {process.exitcode}"
    return reports(job.reports)


def _go_on(job: Job, process: BaseProcess) -> dict[str, Any]:
    _tell(job)
    process.join(120)
    assert process.exitcode == 0, f"the process ended with {process.exitcode}"
    return reports(job.reports)


def _tell(job: Job) -> None:
    Path(f"{job.reports}.go").touch()


def _wait_until(process: BaseProcess, is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert process.exitcode is None, f"the process ended with {process.exitcode}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _logged(job: Job, text: str) -> int:
    return Path(f"{job.reports}.log").read_text().count(text)


def _all_told(stored: Stored, said: dict[str, Any]) -> bool:
    """Return whether every row is either stored or counted as dropped."""
    return stored.num_rows + stored.num_dropped == said["handed"] + said["refused"]


def _rows(stored: Stored, said: dict[str, Any]) -> str:
    num_rows = said["handed"] + said["refused"]
    return f"{stored.num_rows:,} of {num_rows:,} rows stored, {stored.num_dropped:,} dropped"


def _memory(job: Job) -> list[int]:
    lines = job.reports.read_text().splitlines()
    return [int(line.rpartition('"memory_bytes": ')[2].rstrip("}")) for line in lines]
