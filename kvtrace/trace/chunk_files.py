"""The committed chunk files of one rank's store: which CRC32C each must end with, and reading one checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import open_regular, read_regular
from kvtrace.trace.chunks import CRC_BYTES, chunk_crc, chunk_path, decode_chunk, most_bytes
from kvtrace.trace.format import COMMIT_FILE, ArraySpec, ChunkCommit, CommitRecord, RankRecord, array_specs
from kvtrace.trace.requests import COPY_OR_REPAIR

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ChunkCrcs:
    """The CRC32C that each file of one row chunk ends with."""

    text: str
    """8 hex digits each, as `ChunkCommit.crcs`."""
    places: dict[str, int]
    """Array path → its place in `array_specs`; shared by all chunks."""

    def __getitem__(self, array: str) -> int:
        place = 8 * self.places[array]
        return int(self.text[place : place + 8], 16)


def committed_crcs(path: Path, rank: RankRecord, commit: CommitRecord) -> tuple[ChunkCrcs, ...]:
    """Return every chunk's CRCs.

    Before format 1.1 only a digest over them was committed: there the files say their CRCs, and the digest
    says whether to believe them. Empty where such a trace has no tensors left: a profile may stand for them.
    Raises IntegrityError: a file is missing, or they are not those that were committed.
    """
    specs = array_specs(rank)
    if all(chunk.crcs is not None for chunk in commit.chunks):
        places = {spec.path: place for place, spec in enumerate(specs)}
        crcs = tuple(_recorded_crcs(path, chunk, places) for chunk in commit.chunks)
        _check_digests(path, commit)
        return crcs
    tensors = [spec for spec in specs if spec.row_shape]
    if not any(chunk_path(path, spec, c).exists() for c in range(len(commit.chunks)) for spec in tensors):
        return ()
    return tuple(_found_crcs(path, rank, commit, number) for number in range(len(commit.chunks)))


def crcs_in_files(path: Path, rank: RankRecord, commit: CommitRecord, number: int) -> ChunkCrcs | None:
    """Return what a row chunk's files end with; None if that is not what its digest covers."""
    specs = array_specs(rank)
    digest = hashlib.sha256(bytes.fromhex(commit.chunks[number - 1].digest) if number else b"")
    text = ""
    for spec in specs:
        try:
            crc = last_crc(chunk_path(path, spec, number))
        except IntegrityError:
            return None
        digest.update(crc.to_bytes(CRC_BYTES, "little"))
        text += f"{crc:08x}"
    if digest.hexdigest() != commit.chunks[number].digest:
        return None
    return ChunkCrcs(text, {spec.path: place for place, spec in enumerate(specs)})


def read_chunk_file(
    store: Path,
    spec: ArraySpec,
    chunk: int,
    rows_per_chunk: int,
    crc: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Read and check one chunk file. crc: what it must end with, where that is known.

    Raises IntegrityError: it is missing, cut or damaged, or is not the committed one.
    """
    path = chunk_path(store, spec, chunk)
    try:
        content = read_regular(path, most_bytes(spec, rows_per_chunk))
        values = decode_chunk(content, spec, rows_per_chunk, out)
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: is missing, though commit.json covers it. {COPY_OR_REPAIR}") from error
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror}). {COPY_OR_REPAIR}") from error
    except ValueError as error:
        raise IntegrityError(f"{path}: is damaged: {error}. {COPY_OR_REPAIR}") from error
    if crc is not None and chunk_crc(content) != crc:
        raise not_the_committed_one(path)
    return values


def last_crc(path: Path) -> int:
    """Return the CRC32C that a chunk file ends with. Raises IntegrityError: it is missing or too short."""
    try:
        with open_regular(path) as file:
            file.seek(-CRC_BYTES, 2)
            return chunk_crc(file.read(CRC_BYTES))
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: is missing, though commit.json covers it. {COPY_OR_REPAIR}") from error
    except OSError as error:
        raise IntegrityError(f"{path}: is cut or cannot be read. {COPY_OR_REPAIR}") from error


def not_the_committed_one(path: Path) -> IntegrityError:
    """Return the error for a sound file in a place where another one was committed."""
    return IntegrityError(
        f"{path}: is sound, but not the file that commit.json covers: it belongs to another array, trace or "
        f"time. {COPY_OR_REPAIR}"
    )


def _recorded_crcs(store: Path, chunk: ChunkCommit, places: dict[str, int]) -> ChunkCrcs:
    text = chunk.crcs or ""
    if len(text) != 8 * len(places):
        raise IntegrityError(
            f"{store / COMMIT_FILE}: has {len(text) // 8} checksums a chunk, rank.json implies {len(places)} "
            f"arrays. {COPY_OR_REPAIR}"
        )
    return ChunkCrcs(text, places)


def _check_digests(store: Path, commit: CommitRecord) -> None:
    """Raise IntegrityError where a digest is not over the CRCs beside it: it stands for them elsewhere."""
    previous = b""
    for number, chunk in enumerate(commit.chunks):
        digest = hashlib.sha256(previous)
        text = chunk.crcs or ""
        for place in range(0, len(text), 8):
            digest.update(int(text[place : place + 8], 16).to_bytes(CRC_BYTES, "little"))
        previous = digest.digest()
        if digest.hexdigest() != chunk.digest:
            raise IntegrityError(
                f"{store / COMMIT_FILE}: chunks.{number}.digest is not the one of its crcs and of the chunk "
                f"before. {COPY_OR_REPAIR}"
            )


def _found_crcs(path: Path, rank: RankRecord, commit: CommitRecord, number: int) -> ChunkCrcs:
    crcs = crcs_in_files(path, rank, commit, number)
    if crcs is None:
        for spec in array_specs(rank):
            read_chunk_file(path, spec, number, rank.rows_per_chunk)
        raise IntegrityError(
            f"{path}: the files of row chunk {number} are not those that commit.json covers, "
            f"though each is sound: they belong to another trace or time. {COPY_OR_REPAIR}"
        )
    return crcs
