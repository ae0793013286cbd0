"""One store of a rank: its records, its rows, and its tensors chunk by chunk, each read checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.trace.chunk_files import (
    ChunkCrcs,
    committed_crcs,
    last_crc,
    not_the_committed_one,
    read_chunk_file,
)
from kvtrace.trace.chunks import array_metadata, chunk_path
from kvtrace.trace.format import (
    COMMIT_FILE,
    MAX_ROWS,
    RANK_FILE,
    ROW_COLUMNS,
    UNUSED_ROW,
    ArraySpec,
    CommitRecord,
    LayerRecord,
    RankRecord,
    array_specs,
    rank_directory,
    row_column,
)
from kvtrace.trace.requests import COPY_OR_REPAIR, read_dropped, read_sealed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


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
    crcs: tuple[ChunkCrcs, ...]
    """Per chunk, what its files must end with; empty where only a profile is left (before format 1.1)."""

    @property
    def num_chunks(self) -> int:
        """Return the committed chunks."""
        return len(self.commit.chunks)

    def rows_of_chunk(self, chunk: int) -> slice:
        """Return where a chunk's rows stand in `rows`."""
        size = self.rank.rows_per_chunk
        return slice(chunk * size, (chunk + 1) * size)

    def tensor_specs(self) -> Iterator[tuple[LayerRecord, str, ArraySpec]]:
        """Yield (layer, "k" | "v" | "q" | "o", array) for every stored tensor."""
        layers = {layer.index: layer for layer in self.rank.layers}
        for spec in array_specs(self.rank):
            if spec.row_shape:
                _, index, tensor = spec.path.split("/")
                yield layers[int(index)], tensor, spec

    def is_lost(self, spec: ArraySpec, chunk: int) -> bool:
        """Return whether a repair left the array's chunk out: its values are absent."""
        return spec.path in self.commit.chunks[chunk].lost

    @property
    def sampling_ids(self) -> NDArray[np.int32]:
        """Return the sampling rules of every used row."""
        ids: NDArray[np.int32] = self.rows["sampling_id"][self.rows["request"] != UNUSED_ROW]
        return ids

    @property
    def has_values(self) -> NDArray[np.bool_]:
        """Return, per stored row, whether any tensor has a value for it: False where a repair lost all."""
        num_tensors = sum(1 for _ in self.tensor_specs())
        known = [len(chunk.lost) < max(num_tensors, 1) for chunk in self.commit.chunks]
        return np.repeat(np.array(known, dtype=bool), self.rank.rows_per_chunk)

    def read_chunk(self, spec: ArraySpec, chunk: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return one chunk as [rows_per_chunk, *row_shape], in `out` if that is given; zeros where lost.

        Raises IntegrityError: its file is missing, cut or damaged, or is not the committed one.
        """
        size = self.rank.rows_per_chunk
        if not self.is_lost(spec, chunk):
            return read_chunk_file(self.path, spec, chunk, size, self._crc(spec, chunk), out)
        values = np.empty((size, *spec.row_shape), dtype=spec.dtype) if out is None else out
        values[...] = 0
        return values

    def check(self) -> None:
        """Check, without reading the tensors, that every committed chunk is there and is the one committed.

        The CRC32C that ends every chunk file is compared with the committed one: a file that is missing, cut
        or of another commit shows. A byte that flipped inside one shows only where it is read.
        Raises IntegrityError naming the file.
        """
        for chunk in range(self.num_chunks):
            for spec in array_specs(self.rank):
                if not self.is_lost(spec, chunk):
                    path = chunk_path(self.path, spec, chunk)
                    if last_crc(path) != self._crc(spec, chunk):
                        self.read_chunk(spec, chunk)
                        raise not_the_committed_one(path)

    def verify(self) -> None:
        """Reread and check everything. Raises IntegrityError naming the file."""
        for chunk in range(self.num_chunks):
            for spec in array_specs(self.rank):
                self.read_chunk(spec, chunk)
        self.check()

    def _crc(self, spec: ArraySpec, chunk: int) -> int | None:
        return self.crcs[chunk][spec.path] if self.crcs else None


def open_store(path: Path) -> RankStore:
    """Open one `rank-N.zarr`, `context-N.zarr` or `queries-N.zarr`.

    Raises IntegrityError: a record, array or row chunk is missing or damaged.
    """
    rank = read_sealed(path / RANK_FILE, RankRecord)
    commit = read_sealed(path / COMMIT_FILE, CommitRecord)
    check_identity(path, rank, commit)
    check_commit(path, rank, commit)
    for spec in array_specs(rank):
        check_metadata(path, spec, rank, len(commit.chunks))
    crcs = committed_crcs(path, rank, commit)
    rows = {
        name: _read_column(path, row_column(rank, name), rank, crcs, len(commit.chunks))
        for name in ROW_COLUMNS
    }
    _check_row_counts(path, rows["request"], rank, commit)
    _check_rows(path, rank, rows)
    return RankStore(path, rank, commit, read_dropped(path, committed=rank.line_commits), rows, crcs)


def check_identity(path: Path, rank: RankRecord, commit: CommitRecord) -> None:
    """Raise IntegrityError if a record of this store is another one's, another rank's or another trace's."""
    if path.name != rank_directory(rank.rank, rank.holds):
        whose = (
            f"rank {rank.rank}'s" if rank.holds == "rank" else f"of {rank_directory(rank.rank, rank.holds)}"
        )
        raise IntegrityError(f"{path / RANK_FILE}: is {whose}. {COPY_OR_REPAIR}")
    if commit.trace_id != rank.trace_id or commit.rank not in (None, rank.rank):
        raise IntegrityError(
            f"{path / COMMIT_FILE}: belongs to rank {commit.rank} of trace {commit.trace_id}, expected rank "
            f"{rank.rank} of {rank.trace_id}. {COPY_OR_REPAIR}"
        )


def check_commit(path: Path, rank: RankRecord, commit: CommitRecord) -> None:
    """Raise IntegrityError if a commit has too many rows, or arrays that the rank has not."""
    num_rows = len(commit.chunks) * rank.rows_per_chunk
    if num_rows > MAX_ROWS:
        raise IntegrityError(
            f"{path / COMMIT_FILE}: covers {num_rows:,} rows, expected at most {MAX_ROWS:,}. {COPY_OR_REPAIR}"
        )
    tensors = {spec.path for spec in array_specs(rank) if spec.row_shape}
    for number, chunk in enumerate(commit.chunks):
        if len(set(chunk.lost)) < len(chunk.lost) or not tensors.issuperset(chunk.lost):
            raise IntegrityError(
                f"{path / COMMIT_FILE}: chunks.{number}.lost names an array twice, or one that is not a "
                f"tensor of rank.json. {COPY_OR_REPAIR}"
            )


def _read_column(
    store: Path, name: str, rank: RankRecord, crcs: tuple[ChunkCrcs, ...], num_chunks: int
) -> NDArray[Any]:
    spec = next(spec for spec in array_specs(rank) if spec.path == name)
    chunks = [
        read_chunk_file(store, spec, chunk, rank.rows_per_chunk, crcs[chunk][name] if crcs else None)
        for chunk in range(num_chunks)
    ]
    return np.concatenate(chunks) if chunks else np.empty(0, dtype=spec.dtype)


def check_metadata(store: Path, spec: ArraySpec, rank: RankRecord, num_chunks: int) -> None:
    """Check that `zarr.json` says what kvtrace reads, so that plain zarr and kvtrace never disagree."""
    path = store / spec.path / "zarr.json"
    try:
        found = parse_strict_json(read_regular(path))
        num_rows = found["shape"][0]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{path}: is missing or damaged. {COPY_OR_REPAIR}") from error
    expected = array_metadata(spec, num_chunks * rank.rows_per_chunk, rank.rows_per_chunk)
    # A death between the arrays' growth and the commit leaves more rows than are committed.
    if not isinstance(num_rows, int) or num_rows < expected["shape"][0]:
        raise IntegrityError(
            f"{path}: has {num_rows} rows, commit.json covers {expected['shape'][0]}. {COPY_OR_REPAIR}"
        )
    expected["shape"][0] = num_rows
    differing = sorted(key for key in expected if found.get(key) != expected[key])
    if differing:
        raise IntegrityError(
            f"{path}: {', '.join(differing)} differ from what rank.json implies. {COPY_OR_REPAIR}"
        )


def _check_rows(path: Path, rank: RankRecord, rows: dict[str, NDArray[Any]]) -> None:
    used = rows["request"] != UNUSED_ROW
    for name in ROW_COLUMNS:
        if (rows[name][used] < 0).any():
            least = rows[name][used].min()
            raise IntegrityError(
                f"{path / row_column(rank, name)}: has {least}, expected no negative one. {COPY_OR_REPAIR}"
            )


def _check_row_counts(path: Path, request: NDArray[np.int32], rank: RankRecord, commit: CommitRecord) -> None:
    for chunk, committed in enumerate(commit.chunks):
        rows = request[chunk * rank.rows_per_chunk : (chunk + 1) * rank.rows_per_chunk]
        used = int((rows != UNUSED_ROW).sum())
        if used != committed.num_rows:
            raise IntegrityError(
                f"{path}: row chunk {chunk} uses {used} rows, "
                f"commit.json says {committed.num_rows}. {COPY_OR_REPAIR}"
            )
