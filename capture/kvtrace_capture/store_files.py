"""The files of one `rank-N.zarr`, in the order that makes death at any moment harmless.

A chunk is: one file per array, then the arrays' new length, then `commit.json` by atomic replacement. Only
the last makes its rows exist for a reader. Files reach the page cache, not the platter: they survive the
death of the process; after a power loss, checksums tell what is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any, Final

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
from kvtrace_capture.lines_file import LinesFile
from kvtrace_capture.private_files import make_private_directory
from kvtrace_capture.private_files import write_private as write_private
from kvtrace_capture.store_lock import StoreLock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.trace.attention_format import ResidualRecord


RESERVE_FILE: Final = "reserve"
RESERVE_BYTES: Final = 1 << 20
"""Given back when a write fails: a full disk then still takes the reason, and the counts of what is lost."""


class StoreFiles:
    """Creates one rank's store and appends whole chunks to it. Every method may raise OSError.

    Raises FileExistsError if the store is there: every start has a directory of its own.
    """

    def __init__(self, store: Path, rank: RankRecord) -> None:
        self.specs = array_specs(rank)
        self.cost = {"hook_s": 0.0, "copy_s": 0.0, "write_s": 0.0, "raw_bytes": 0.0, "stored_bytes": 0.0}
        self.residual: tuple[ResidualRecord, ...] = ()
        """Of a store of queries, as the next commit says it."""
        self._store = store
        self._rank = rank.model_copy(update={"line_commits": True})
        self._commits: list[ChunkCommit] = []
        self._create()
        self._dropped = LinesFile(store / DROPPED_FILE)

    def append_chunk(self, buffer: Mapping[str, NDArray[Any]], num_rows: int) -> None:
        """Write and commit one chunk of every array. buffer: array path → [rows_per_chunk, …]."""
        started, chunk = time.monotonic(), len(self._commits)
        digest = hashlib.sha256(bytes.fromhex(self._commits[-1].digest) if self._commits else b"")
        crcs = []
        for spec in self.specs:
            content = encode_chunk(buffer[spec.path])
            path = chunk_path(self._store, spec, chunk)
            # Not the store itself: where somebody has removed it, rows have nowhere to go.
            make_private_directory(path.parent, below=self._store / spec.path)
            write_private(path, content)
            crcs.append(chunk_crc(content))
            digest.update(crcs[-1].to_bytes(4, "little"))
            self.cost["stored_bytes"] += len(content)
            self.cost["raw_bytes"] += buffer[spec.path][:num_rows].nbytes
        commit = ChunkCommit(
            num_rows=num_rows, digest=digest.hexdigest(), crcs="".join(f"{crc:08x}" for crc in crcs)
        )
        commits = [*self._commits, commit]
        self._write_lengths(len(commits) * self._rank.rows_per_chunk)
        self.cost["write_s"] += time.monotonic() - started
        self._write_commit(commits)
        self._commits = commits

    def append_dropped(self, dropped: DroppedRecord) -> None:
        """Note rows that were sampled and are not stored; `commit_dropped` makes it exist."""
        self._dropped.append(seal(dropped))

    def commit_dropped(self) -> None:
        """Make the notes of dropped rows exist for a reader."""
        self._dropped.commit()

    def note_failure(self, failure: str) -> None:
        """Say in `commit.json` why nothing more is stored."""
        self._give_reserve_back()
        self._write_commit(self._commits, failure=failure)

    def close(self) -> None:
        """Mark the store as shut down in order."""
        self._give_reserve_back()
        self._write_commit(self._commits, closed=True)
        self._lock.release()

    def _give_reserve_back(self) -> None:
        with contextlib.suppress(OSError):
            (self._store / RESERVE_FILE).unlink(missing_ok=True)

    def _create(self) -> None:
        make_private_directory(self._store.parent)
        self._store.mkdir(mode=0o700)
        self._lock = StoreLock(self._store)
        groups = {self._store}
        for spec in self.specs:
            make_private_directory(self._store / spec.path)
            parents = (self._store / spec.path).parents
            groups.update(parent for parent in parents if parent.is_relative_to(self._store))
        for group in groups:
            write_private(group / "zarr.json", json.dumps(group_metadata()))
        self._write_lengths(0)
        write_private(self._store / RANK_FILE, seal(self._rank, indent=1))
        self._write_commit([])
        write_private(self._store / RESERVE_FILE, bytes(RESERVE_BYTES))

    def _write_lengths(self, num_rows: int) -> None:
        for spec in self.specs:
            metadata = array_metadata(spec, num_rows, self._rank.rows_per_chunk)
            write_private(self._store / spec.path / "zarr.json", json.dumps(metadata))

    def _write_commit(
        self, commits: list[ChunkCommit], *, closed: bool = False, failure: str | None = None
    ) -> None:
        record = CommitRecord(
            trace_id=self._rank.trace_id,
            rank=self._rank.rank,
            chunks=tuple(commits),
            closed=closed,
            failure=failure,
            cost=self.cost,
            residual=self.residual,
        )
        write_private(self._store / COMMIT_FILE, seal(record))
