"""The tensor chunks that a profile was made of: their sizes and times, by which it is believed unread."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.errors import IntegrityError
from kvtrace.profile.arrays import read_array, replace_array, write_array, write_group
from kvtrace.trace.chunks import chunk_path
from kvtrace.trace.profile_format import chunk_specs

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.trace.reader import BlockRef, Trace

    ChunkStats = tuple[NDArray[np.int64], NDArray[np.int64]]
    """Size in bytes and modification time in ns of every tensor chunk; -1 where it is missing."""


def chunk_stats(refs: list[BlockRef]) -> ChunkStats:
    """Return the sizes and times of the chunks as they are now."""
    stats = np.full((2, len(refs)), -1, np.int64)
    for index, ref in enumerate(refs):
        file = chunk_path(ref.store.path, ref.spec, ref.chunk)
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise IntegrityError(f"{file}: cannot be read ({error.strerror})") from error
        stats[:, index] = found.st_size, found.st_mtime_ns
    return stats[0], stats[1]


def write_chunk_list(profile: Path, stats: ChunkStats) -> None:
    """Write the list of a new profile."""
    write_group(profile, "chunks")
    for spec, values in zip(chunk_specs(), stats, strict=True):
        write_array(profile, spec, values)


def read_chunk_list(profile: Path, num_chunks: int) -> ChunkStats:
    """Return what the profile was made of. Raises IntegrityError: an array of it is missing or damaged."""
    sizes, mtimes = (read_array(profile, spec, num_chunks) for spec in chunk_specs())
    return sizes, mtimes


def reread_changed(trace: Trace, profile: Path, refs: list[BlockRef], now: ChunkStats) -> int:
    """Reread the chunks that changed since the profile was made of them, and return how many they are.

    Raises IntegrityError: some are missing or damaged.
    """
    changed = np.zeros(len(refs), bool)
    for before, after in zip(read_chunk_list(profile, len(refs)), now, strict=True):
        changed |= before != after
    if changed.any():
        for index in np.flatnonzero(changed):
            refs[index].load()
        for store in trace.ranks:
            store.check()
        _note_times(profile, now)
    return int(changed.sum())


def _note_times(profile: Path, stats: ChunkStats) -> None:
    """Keep the new times, so that a copied trace is reread once and not at every use."""
    for spec, values in zip(chunk_specs(), stats, strict=True):
        with contextlib.suppress(OSError):  # a trace that cannot be written is reread the next time
            replace_array(profile, spec, values)
