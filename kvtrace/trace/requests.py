"""The trace's JSON-lines files: requests, sampling rules, dropped rows; each as far as its commit goes."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import google_crc32c

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import read_regular
from kvtrace.plain_text import plain
from kvtrace.trace.format import (
    DROPPED_FILE,
    REQUESTS_FILE,
    SAMPLING_FILE,
    DroppedRecord,
    RecordT,
    RequestRecord,
    SamplingRecord,
    unseal,
)
from kvtrace.trace.lines import LinesCommit, lines_commit_file
from kvtrace.trace.sealed import repeated

if TYPE_CHECKING:
    from pathlib import Path

LINES_BYTES: Final = 1_000_000_000
"""Limit of a file of lines: three million requests."""
_LINE_BYTES: Final = 1_000_000
MOST_ROWS: Final = 2**31 - 1
"""Of a request: more are no count of positions, and no column of a run holds them."""
COPY_OR_REPAIR: Final = (
    "Copy the trace again from its host, or keep what is sound: kvtrace inspect TRACE --repair -o NEW"
)


def read_requests(trace: Path, *, committed: bool = False) -> dict[int, RequestRecord]:
    """Return the last record of every request, by its number.

    committed: the file must have a commit; without one, all its lines are read.
    Raises IntegrityError: the file or its commit is missing, cut or damaged. Without a commit, a cut last
    line is left out, and a cut at a line's end goes unseen.
    """
    found = {one.request: one for one in _read_lines(trace / REQUESTS_FILE, RequestRecord, committed)}
    for number, request in found.items():
        if sum(stop - start for start, stop in request.missing) > MOST_ROWS:
            raise IntegrityError(
                f"{trace / REQUESTS_FILE}: request {number} misses more than {MOST_ROWS:,} positions. "
                f"{COPY_OR_REPAIR}"
            )
    return found


def read_sampling(trace: Path, *, committed: bool = False) -> dict[int, SamplingRecord]:
    """Return the sampling rules by their id. Raises IntegrityError as `read_requests` does."""
    records = _read_lines(trace / SAMPLING_FILE, SamplingRecord, committed)
    if (twice := repeated([record.sampling_id for record in records])) is not None:
        raise IntegrityError(
            f"{trace / SAMPLING_FILE}: has the rules of sampling_id {twice} twice. {COPY_OR_REPAIR}"
        )
    return {record.sampling_id: record for record in records}


def read_dropped(store: Path, *, committed: bool = False) -> dict[int, dict[str, int]]:
    """Return, per request, the rows this rank lost by reason. Raises IntegrityError likewise."""
    dropped: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for record in _read_lines(store / DROPPED_FILE, DroppedRecord, committed):
        dropped[record.request][record.reason] += record.num_rows
    return {request: dict(reasons) for request, reasons in dropped.items()}


def read_lines_commit(path: Path, *, committed: bool = True) -> LinesCommit | None:
    """Return the commit of a file of lines; None where there is none and need not be one.

    Raises IntegrityError: it is damaged, or missing though the trace says that there is one.
    """
    file = lines_commit_file(path)
    return read_sealed(file, LinesCommit) if committed or os.path.lexists(file) else None


def read_covered(path: Path, commit: LinesCommit | None) -> bytes:
    """Return what a commit covers of a file of lines; all of it where there is no commit.

    Raises IntegrityError: the file is missing, or cut within what its commit covers.
    """
    try:
        content = read_regular(path, LINES_BYTES)
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read ({error.strerror}); a trace has one. {COPY_OR_REPAIR}"
        ) from error
    if commit is None:
        return content
    if len(content) < commit.num_bytes:
        raise IntegrityError(
            f"{path}: has {len(content):,} bytes, {lines_commit_file(path).name} covers "
            f"{commit.num_bytes:,}: it was cut. {COPY_OR_REPAIR}"
        )
    return content[: commit.num_bytes]


def _read_lines(path: Path, kind: type[RecordT], committed: bool) -> list[RecordT]:
    """Parse sealed lines. A last line without its newline was cut by the writer's death: it is left out."""
    commit = read_lines_commit(path, committed=committed)
    content = read_covered(path, commit)
    *lines, _cut = content.split(b"\n")
    records: list[RecordT] = []
    for number, line in enumerate(lines, start=1):
        try:
            if len(line) > _LINE_BYTES:
                raise ValueError(f"it has {len(line):,} bytes, expected at most {_LINE_BYTES:,}")
            records.append(unseal(line, kind))
        except ValueError as error:
            raise IntegrityError(
                f"{path}: line {number} is damaged ({_first_line(error)}). {COPY_OR_REPAIR}"
            ) from error
    if commit is not None and f"{google_crc32c.value(content):08x}" != commit.content_crc32c:
        raise IntegrityError(
            f"{path}: its lines are sound, but not those that {lines_commit_file(path).name} covers. "
            f"{COPY_OR_REPAIR}"
        )
    return records


def read_sealed(path: Path, kind: type[RecordT]) -> RecordT:
    """Return the record of a sealed JSON file. Raises IntegrityError: missing, cut or damaged."""
    try:
        return unseal(read_regular(path), kind)
    except OSError as error:
        raise IntegrityError(
            f"{path}: cannot be read ({error.strerror}); a trace has one. {COPY_OR_REPAIR}"
        ) from error
    except ValueError as error:
        raise IntegrityError(f"{path}: is damaged ({_first_line(error)}). {COPY_OR_REPAIR}") from error


def _first_line(error: Exception) -> str:
    return plain(next(iter(str(error).splitlines()), type(error).__name__), 200)
