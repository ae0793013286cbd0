"""The files of one `rank-N.zarr`, in the order that makes death at any moment harmless.

A chunk is: one file per array, then the arrays' new length, then `commit.json` by atomic replacement. Only
the last makes its rows exist for a reader. Files reach the page cache, not the platter: they survive the
death of the process; after a power loss, checksums tell what is left.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from kvtrace.trace.chunks import (
    array_metadata,
    chunk_crc,
    chunk_path,
    encode_chunk,
    group_metadata,
)
from kvtrace.trace.format import (
    COMMIT_FILE,
    DROPPED_FILE,
    RANK_FILE,
    ChunkCommit,
    CommitRecord,
    DroppedRecord,
    RankRecord,
    array_specs,
    seal,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


class StoreFiles:
    """Creates one rank's store and appends whole chunks to it. Every method may raise OSError.

    Raises FileExistsError if the store is there: every start has a directory of its own.
    """

    def __init__(self, store: Path, rank: RankRecord) -> None:
        self.specs = array_specs(rank)
        self.cost = {"hook_s": 0.0, "write_s": 0.0, "raw_bytes": 0.0, "stored_bytes": 0.0}
        self._store = store
        self._rank = rank
        self._commits: list[ChunkCommit] = []
        self._create()

    def append_chunk(self, buffer: Mapping[str, NDArray[Any]], num_rows: int) -> None:
        """Write and commit one chunk of every array. buffer: array path → [rows_per_chunk, …]."""
        chunk = len(self._commits)
        digest = hashlib.sha256(bytes.fromhex(self._commits[-1].digest) if self._commits else b"")
        for spec in self.specs:
            content = encode_chunk(buffer[spec.path])
            path = chunk_path(self._store, spec, chunk)
            make_private_directory(path.parent)
            write_private(path, content)
            digest.update(chunk_crc(content).to_bytes(4, "little"))
            self.cost["stored_bytes"] += len(content)
            self.cost["raw_bytes"] += buffer[spec.path][:num_rows].nbytes
        commits = [*self._commits, ChunkCommit(num_rows=num_rows, digest=digest.hexdigest())]
        self._write_lengths(len(commits) * self._rank.rows_per_chunk)
        self._write_commit(commits, closed=False)
        self._commits = commits

    def append_dropped(self, dropped: DroppedRecord) -> None:
        """Note rows that were sampled and are not stored."""
        with (self._store / DROPPED_FILE).open("a", encoding="utf-8") as file:
            file.write(seal(dropped) + "\n")

    def close(self) -> None:
        """Mark the store as shut down in order."""
        self._write_commit(self._commits, closed=True)

    def _create(self) -> None:
        make_private_directory(self._store.parent)
        self._store.mkdir(mode=0o700)
        groups = {self._store}
        for spec in self.specs:
            make_private_directory(self._store / spec.path)
            parents = (self._store / spec.path).parents
            groups.update(parent for parent in parents if parent.is_relative_to(self._store))
        for group in groups:
            write_private(group / "zarr.json", json.dumps(group_metadata()))
        self._write_lengths(0)
        write_private(self._store / RANK_FILE, seal(self._rank, indent=1))
        write_private(self._store / DROPPED_FILE, "")
        self._write_commit([], closed=False)

    def _write_lengths(self, num_rows: int) -> None:
        for spec in self.specs:
            metadata = array_metadata(spec, num_rows, self._rank.rows_per_chunk)
            write_private(self._store / spec.path / "zarr.json", json.dumps(metadata))

    def _write_commit(self, commits: list[ChunkCommit], *, closed: bool) -> None:
        record = CommitRecord(
            trace_id=self._rank.trace_id, chunks=tuple(commits), closed=closed, cost=self.cost
        )
        write_private(self._store / COMMIT_FILE, seal(record))


def make_private_directory(path: Path) -> None:
    """Create a directory and what it lacks above it, for the owner alone; existing ones stay as they are."""
    for directory in (*reversed(path.parents), path):
        directory.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all (atomic replacement)."""
    partial = path.with_name(path.name + ".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    partial.replace(path)
