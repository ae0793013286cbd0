"""A folder of traces, as capture leaves it: one trace for every start of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import IntegrityError, KVTraceError, NotATraceError
from kvtrace.plain_text import plain
from kvtrace.trace.format import COMMIT_FILE, TRACE_FILE, TRACE_SUFFIX, CommitRecord, rank_directory
from kvtrace.trace.opening import read_trace_record
from kvtrace.trace.requests import read_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.format import TraceRecord

_MOST_TRACES: Final = 10_000


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One trace in a folder, by its records alone: no tensor is read."""

    path: Path
    record: TraceRecord | None
    """None where it cannot be read."""
    num_rows: int | None
    """Rows of rank 0 that are committed; None where that cannot be told."""
    committed_at: float | None
    """Unix time of rank 0's last commit, by the file's own time."""
    closed: bool | None
    """Whether the engine shut down in order; False while it runs, and after it died."""
    problem: str | None = None
    """Why the trace, or how much it holds, cannot be read."""


def traces_in(folder: Path) -> list[TraceEntry]:
    """Return the traces in a folder, the latest first; those that cannot be read come last.

    A trace is a directory called NAME.kvtrace.
    Raises NotATraceError: there is no such folder, or it holds no trace, or far too many.
    """
    if not folder.is_dir():
        raise NotATraceError(f"{folder}: is not a folder; expected one with traces (NAME.kvtrace)")
    paths = sorted(path for path in folder.glob(f"*{TRACE_SUFFIX}") if path.is_dir())
    if not paths:
        raise NotATraceError(
            f"{folder}: holds no trace (NAME.kvtrace); give the directory that capture was told to write to"
        )
    if len(paths) > _MOST_TRACES:
        raise NotATraceError(f"{folder}: holds {len(paths):,} traces, expected at most {_MOST_TRACES:,}")
    return sorted(map(_entry, paths), key=lambda entry: -entry.record.created_at if entry.record else 0.0)


def chosen_trace(path: Path) -> tuple[Path, str | None]:
    """Return the trace that is meant by a path, and what to tell of the choice: a trace itself, or the latest
    of a folder.

    Raises NotATraceError: it is a folder in which no trace can be read.
    """
    if (path / TRACE_FILE).exists() or not path.is_dir() or not any(path.glob(f"*{TRACE_SUFFIX}")):
        return path, None  # whoever opens it says what is wrong with it
    readable = [entry for entry in traces_in(path) if entry.record]
    if not readable:
        raise NotATraceError(f"{path}: none of its traces can be read; kvtrace ls {path} says why")
    latest = readable[0].path
    number = "its only trace" if len(readable) == 1 else f"the latest of {len(readable):,} traces"
    return latest, f"{path}: {plain(latest.name, 120)} is taken, {number} (kvtrace ls lists them)"


def _entry(path: Path) -> TraceEntry:
    try:
        record = read_trace_record(path)
    except KVTraceError as error:
        return TraceEntry(path, None, None, None, None, str(error))
    file = path / rank_directory(0) / COMMIT_FILE
    try:
        commit = read_sealed(file, CommitRecord)
        committed_at = file.stat().st_mtime
    except (IntegrityError, OSError):
        return TraceEntry(path, record, None, None, None, "rank 0 has committed nothing")
    num_rows = sum(chunk.num_rows for chunk in commit.chunks)
    return TraceEntry(path, record, num_rows, committed_at, commit.closed)
