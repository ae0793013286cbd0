"""One rank's store: its records, its rows, and its tensors chunk by chunk, each read checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.errors import IntegrityError
from kvtrace.trace.chunks import CRC_BYTES, array_metadata, chunk_crc, chunk_path, decode_chunk
from kvtrace.trace.format import (
    COMMIT_FILE,
    RANK_FILE,
    ROW_COLUMNS,
    UNUSED_ROW,
    ArraySpec,
    CommitRecord,
    LayerRecord,
    RankRecord,
    array_specs,
)
from kvtrace.trace.requests import read_dropped, read_sealed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

COPY_AGAIN = "Copy the trace again from its host, or leave the trace out"


@dataclass(frozen=True, slots=True)
class RankStore:
    """A rank's store, opened: everything but the tensors is in memory and checked."""

    path: Path
    rank: RankRecord
    commit: CommitRecord
    dropped: dict[int, dict[str, int]]
    """Request → reason → rows that this rank sampled and did not store."""
    rows: dict[str, NDArray[Any]]
    """The row columns, all committed chunks end to end: request, position, step, sampling_id."""

    @property
    def num_chunks(self) -> int:
        """Return the committed chunks."""
        return len(self.commit.chunks)

    def rows_of_chunk(self, chunk: int) -> slice:
        """Return where a chunk's rows stand in `rows`."""
        size = self.rank.rows_per_chunk
        return slice(chunk * size, (chunk + 1) * size)

    def tensor_specs(self) -> Iterator[tuple[LayerRecord, str, ArraySpec]]:
        """Yield (layer, "k" | "v", array) for every stored tensor."""
        specs = {spec.path: spec for spec in array_specs(self.rank)}
        for layer in self.rank.layers:
            if layer.captured:
                for tensor in ("k", "v"):
                    yield layer, tensor, specs[f"layers/{layer.index:02d}/{tensor}"]

    def read_chunk(self, spec: ArraySpec, chunk: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return one chunk as [rows_per_chunk, *row_shape]; in `out` if that is given.

        Raises IntegrityError: its file is missing, cut, or differs from its checksum.
        """
        return _read_chunk(self.path, spec, chunk, self.rank.rows_per_chunk, out)

    def check(self) -> None:
        """Check, without reading the tensors, that every committed chunk is there and is the one committed.

        The CRC32C that ends every chunk file goes into the digest of `commit.json`: a file that is missing,
        cut or of another commit shows. A byte that flipped inside one shows only where it is read.
        Raises IntegrityError naming the file.
        """
        previous = b""
        for chunk, committed in enumerate(self.commit.chunks):
            digest = hashlib.sha256(previous)
            for spec in array_specs(self.rank):
                digest.update(_last_bytes(chunk_path(self.path, spec, chunk)))
            if digest.hexdigest() != committed.digest:
                self._verify_chunk(chunk)
                raise IntegrityError(
                    f"{self.path}: the files of row chunk {chunk} are not those that commit.json covers, "
                    f"though each is sound: they belong to another trace or time. {COPY_AGAIN}"
                )
            previous = digest.digest()

    def verify(self) -> None:
        """Reread and check everything. Raises IntegrityError naming the file."""
        for chunk in range(self.num_chunks):
            self._verify_chunk(chunk)
        self.check()

    def _verify_chunk(self, chunk: int) -> None:
        for spec in array_specs(self.rank):
            self.read_chunk(spec, chunk)


def open_store(path: Path) -> RankStore:
    """Open one `rank-N.zarr`. Raises IntegrityError: a record, array or row chunk is missing or damaged."""
    rank = read_sealed(path / RANK_FILE, RankRecord)
    commit = read_sealed(path / COMMIT_FILE, CommitRecord)
    if commit.trace_id != rank.trace_id:
        raise IntegrityError(
            f"{path / COMMIT_FILE}: belongs to trace {commit.trace_id}, "
            f"expected {rank.trace_id}. {COPY_AGAIN}"
        )
    for spec in array_specs(rank):
        _check_metadata(path, spec, rank, len(commit.chunks))
    specs = {spec.path: spec for spec in array_specs(rank)}
    rows = {
        name: _read_column(path, specs[f"rows/kv/{name}"], rank.rows_per_chunk, len(commit.chunks))
        for name in ROW_COLUMNS
    }
    _check_row_counts(path, rows["request"], rank, commit)
    return RankStore(path, rank, commit, read_dropped(path), rows)


def _read_column(path: Path, spec: ArraySpec, rows_per_chunk: int, num_chunks: int) -> NDArray[Any]:
    chunks = [_read_chunk(path, spec, chunk, rows_per_chunk) for chunk in range(num_chunks)]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=spec.dtype)


def _read_chunk(
    store: Path, spec: ArraySpec, chunk: int, rows_per_chunk: int, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    path = chunk_path(store, spec, chunk)
    try:
        return decode_chunk(path.read_bytes(), spec, rows_per_chunk, out)
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: is missing, though commit.json covers it. {COPY_AGAIN}") from error
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror}). {COPY_AGAIN}") from error
    except ValueError as error:
        raise IntegrityError(f"{path}: is damaged: {error}. {COPY_AGAIN}") from error


def _last_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-CRC_BYTES, 2)
            return chunk_crc(file.read(CRC_BYTES)).to_bytes(CRC_BYTES, "little")
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: is missing, though commit.json covers it. {COPY_AGAIN}") from error
    except OSError as error:
        raise IntegrityError(f"{path}: is cut or cannot be read. {COPY_AGAIN}") from error


def _check_metadata(store: Path, spec: ArraySpec, rank: RankRecord, num_chunks: int) -> None:
    """Check that `zarr.json` says what kvtrace reads, so that plain zarr and kvtrace never disagree."""
    path = store / spec.path / "zarr.json"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: is missing or damaged. {COPY_AGAIN}") from error
    expected = array_metadata(spec, num_chunks * rank.rows_per_chunk, rank.rows_per_chunk)
    num_rows = found["shape"][0] if isinstance(found, dict) and found.get("shape") else -1
    # A death between the arrays' growth and the commit leaves more rows than are committed.
    if not isinstance(num_rows, int) or num_rows < expected["shape"][0]:
        raise IntegrityError(
            f"{path}: has {num_rows} rows, commit.json covers {expected['shape'][0]}. {COPY_AGAIN}"
        )
    expected["shape"][0] = num_rows
    differing = sorted(key for key in expected if found.get(key) != expected[key])
    if differing:
        raise IntegrityError(
            f"{path}: {', '.join(differing)} differ from what rank.json implies. {COPY_AGAIN}"
        )


def _check_row_counts(path: Path, request: NDArray[np.int32], rank: RankRecord, commit: CommitRecord) -> None:
    for chunk, committed in enumerate(commit.chunks):
        rows = request[chunk * rank.rows_per_chunk : (chunk + 1) * rank.rows_per_chunk]
        used = int((rows != UNUSED_ROW).sum())
        if used != committed.num_rows:
            raise IntegrityError(
                f"{path}: row chunk {chunk} uses {used} rows, "
                f"commit.json says {committed.num_rows}. {COPY_AGAIN}"
            )
