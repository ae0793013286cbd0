"""What is provably good of a damaged trace: lines by their seals, chunks by the CRC32C that was committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import google_crc32c

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import read_regular
from kvtrace.trace.chunk_files import ChunkCrcs, committed_crcs, crcs_in_files, read_chunk_file
from kvtrace.trace.format import (
    COMMIT_FILE,
    DROPPED_FILE,
    RANK_FILE,
    ROW_COLUMNS,
    UNUSED_ROW,
    ChunkCommit,
    CommitRecord,
    DroppedRecord,
    RankRecord,
    RecordT,
    array_specs,
    row_column,
    unseal,
)
from kvtrace.trace.repair.record import LostLines
from kvtrace.trace.requests import LINES_BYTES, read_lines_commit, read_sealed
from kvtrace.trace.store import check_commit, check_identity, check_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SoundLines(Generic[RecordT]):
    """The sealed lines of one file."""

    lines: tuple[str, ...]
    records: tuple[RecordT, ...]
    lost: LostLines | None
    num_unwritten: int = 0
    """Lines that the capture itself could not write."""


@dataclass(frozen=True, slots=True)
class SoundChunk:
    """One committed row chunk: what of it is sound."""

    commit: ChunkCommit
    crcs: ChunkCrcs | None
    """What its files must end with; None where nothing tells (before format 1.1)."""
    problems: dict[str, str]
    """Array path → what is wrong with its file."""
    request: NDArray[Any] | None
    """The request of its used rows; None where a row column is damaged: then nothing can be kept."""


@dataclass(frozen=True, slots=True)
class SoundStore:
    """One rank's store: what of it is sound."""

    path: Path
    rank: RankRecord
    commit: CommitRecord
    chunks: tuple[SoundChunk, ...]
    dropped: SoundLines[DroppedRecord]
    rewritten: tuple[str, ...]
    """Array metadata that is damaged; rank.json implies it."""


def sound_lines(path: Path, kind: type[RecordT], *, committed: bool, name: str) -> SoundLines[RecordT]:
    """Return the lines that are sealed and, as far as their commit tells, belong to this file.

    name: the file's in the trace, for the report.
    """
    problems, commit, content = [], None, b""
    try:
        commit = read_lines_commit(path, committed=committed)
    except IntegrityError as error:
        problems.append(str(error))
    try:
        content = read_regular(path, LINES_BYTES)[: commit.num_bytes if commit else None]
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
    *whole, _cut = content.split(b"\n")
    kept: list[tuple[str, RecordT]] = []
    for number, line in enumerate(whole, start=1):
        try:
            kept.append((line.decode(), unseal(line, kind)))
        except ValueError:
            problems.append(f"{path}: line {number} is damaged")
    if commit and not problems and len(content) < commit.num_bytes:
        problems.append(f"{path}: was cut")
    elif commit and not problems and f"{google_crc32c.value(content):08x}" != commit.content_crc32c:
        problems.append(f"{path}: its lines are sound, but not those that were committed")
        kept = []
    lost = None
    if problems:
        num_lost = commit.num_lines - len(kept) if commit else None
        lost = LostLines(file=name, num_kept=len(kept), num_lost=num_lost, problem=problems[0])
    lines, records = tuple(line for line, _ in kept), tuple(record for _, record in kept)
    return SoundLines(lines, records, lost, commit.num_lost if commit else 0)


def sound_store(path: Path) -> SoundStore:
    """Return what is sound of one store. Raises IntegrityError: a record of it is not."""
    rank = read_sealed(path / RANK_FILE, RankRecord)
    commit = read_sealed(path / COMMIT_FILE, CommitRecord)
    check_identity(path, rank, commit)
    check_commit(path, rank, commit)
    crcs = _known_crcs(path, rank, commit)
    chunks = tuple(_sound_chunk(path, rank, commit, n, crcs[n]) for n in range(len(commit.chunks)))
    dropped = sound_lines(
        path / DROPPED_FILE,
        DroppedRecord,
        committed=rank.line_commits,
        name=f"{path.name}/{DROPPED_FILE}",
    )
    return SoundStore(path, rank, commit, chunks, dropped, tuple(_damaged_metadata(path, rank, commit)))


def _known_crcs(path: Path, rank: RankRecord, commit: CommitRecord) -> list[ChunkCrcs | None]:
    """Return every chunk's committed CRCs; before format 1.1 those that the digest confirms."""
    if all(chunk.crcs is not None for chunk in commit.chunks):
        return list(committed_crcs(path, rank, commit))
    return [crcs_in_files(path, rank, commit, number) for number in range(len(commit.chunks))]


def _sound_chunk(
    path: Path, rank: RankRecord, commit: CommitRecord, number: int, crcs: ChunkCrcs | None
) -> SoundChunk:
    problems: dict[str, str] = {}
    columns: dict[str, NDArray[Any]] = {}
    for spec in array_specs(rank):
        if spec.path in commit.chunks[number].lost:
            continue
        try:
            crc = crcs[spec.path] if crcs else None
            values = read_chunk_file(path, spec, number, rank.rows_per_chunk, crc)
        except IntegrityError as error:
            problems[spec.path] = str(error)
        else:
            if not spec.row_shape:
                columns[spec.path] = values
    request = None
    if crcs is not None and len(columns) == len(ROW_COLUMNS):
        request = columns[row_column(rank, "request")]
        request = request[request != UNUSED_ROW]
    return SoundChunk(commit.chunks[number], crcs, problems, request)


def _damaged_metadata(path: Path, rank: RankRecord, commit: CommitRecord) -> list[str]:
    damaged = []
    for spec in array_specs(rank):
        try:
            check_metadata(path, spec, rank, len(commit.chunks))
        except IntegrityError:
            damaged.append(f"{path.name}/{spec.path}/zarr.json")
    return damaged
