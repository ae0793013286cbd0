"""Keep a profile in its trace: written whole or not at all, believed only for the trace it was made of."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace import __version__
from kvtrace.errors import IntegrityError
from kvtrace.profile.arrays import read_array, replace_array, write_array, write_group
from kvtrace.profile.counts import TensorProfile
from kvtrace.trace.chunks import chunk_path
from kvtrace.trace.format import seal, unseal
from kvtrace.trace.profile_format import (
    PROFILE_DIRECTORY,
    PROFILE_FILE,
    PROFILE_SCHEMA_VERSION,
    CellRecord,
    ProfileRecord,
    TensorRecord,
    chunk_specs,
    tensor_specs,
)
from kvtrace.trace.staging import locked, put, staged
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import BlockRef, Trace

_READ_AHEAD: Final = 4
_KEEP_BYTES: Final = 64 << 20
_COPY_AGAIN: Final = (
    "Copy it again from where it came: the trace has no tensors any more, and without it they are lost"
)


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """A complete profile on disk."""

    path: Path
    record: ProfileRecord
    num_reread: int = 0
    """Chunks that were reread to tell that they are those it was made of, their times being others."""
    stands_alone: bool = False
    """Whether the trace has no tensors any more, so that it could not be made again."""
    _kept: list[TensorProfile] = field(default_factory=list, repr=False, compare=False)
    """All tensors, once read, where they are small: a replay goes over them five times."""

    def is_over(self, cells: Cells) -> bool:
        """Return whether its cells are these, in this order."""
        return self.record.cells == tuple(_cell_records(cells))

    def tensors(self) -> Iterator[TensorProfile]:
        """Yield every layer's K and V, by layer; the next ones are read meanwhile, and up to 64 MiB are kept.

        Raises IntegrityError: an array is missing or damaged.
        """
        if self._kept:
            yield from self._kept
            return
        keep, num_bytes = list[TensorProfile](), 0
        for tensor in self._all_read():
            num_bytes += tensor.num_bytes
            if num_bytes <= _KEEP_BYTES:
                keep.append(tensor)
            yield tensor
        if num_bytes <= _KEEP_BYTES:
            self._kept[:] = keep

    def _all_read(self) -> Iterator[TensorProfile]:
        records = sorted(self.record.tensors, key=lambda tensor: (tensor.layer, tensor.tensor))
        with ThreadPoolExecutor(2, thread_name_prefix="kvtrace-read") as pool:
            for first in range(0, len(records), _READ_AHEAD):
                yield from pool.map(self._read, records[first : first + _READ_AHEAD])

    def _read(self, record: TensorRecord) -> TensorProfile:
        lengths = {
            "code": record.num_entries,
            "count": record.num_entries,
            "start": len(record.kv_heads) * len(self.record.cells) + 1,
            "absmax": self.record.num_tokens,
        }
        specs = tensor_specs(record)
        crcs = record.crcs or (None,) * len(specs)
        mend = _COPY_AGAIN if self.stands_alone else f"Delete {self.path}: the profile is made again"
        arrays = {
            name: read_array(self.path, spec, lengths[name], crc, mend=mend)
            for (name, spec), crc in zip(specs.items(), crcs, strict=True)
        }
        return TensorProfile(record, **arrays)


def find_profile(trace: Trace, directory: str = PROFILE_DIRECTORY) -> StoredProfile | None:
    """Return the trace's profile; None where there is none, or it was made of another state of the trace.

    The tensors are not reread: every chunk's presence, size and modification time is compared with those
    at profiling, and only a chunk that differs, as in a copied trace, is read and checked, once. A trace
    without any tensor chunk is valid: the profile stands for it.
    Raises IntegrityError: some chunks are missing, or one has changed and is damaged.
    """
    path = trace.path / directory
    try:
        record = unseal((path / PROFILE_FILE).read_bytes(), ProfileRecord)
    except (OSError, ValueError):
        return None
    if record.schema_version.split(".")[0] != PROFILE_SCHEMA_VERSION.split(".")[0]:
        return None
    if record.trace_sha256 != trace.digest:
        return None
    num_reread, none_there = _check_chunks(trace, path, record)
    return StoredProfile(path, record, num_reread, stands_alone=none_there)


def write_profile(trace: Trace, cells: Cells, tensors: Iterable[TensorProfile], path: Path) -> StoredProfile:
    """Write the profile to directory `path`, which it replaces; until it is complete, nothing is there.

    tensors: every layer's K and V in any order, written as they come.
    """
    with staged(path) as partial:
        return put_profile(fill_profile(trace, cells, tensors, partial), trace, cells, path)


def fill_profile(
    trace: Trace, cells: Cells, tensors: Iterable[TensorProfile], directory: Path
) -> StoredProfile:
    """Write the profile into an empty directory."""
    sizes, mtimes = _chunk_stats(trace.block_refs())
    records = tuple(_write_tensor(directory, tensor) for tensor in tensors)
    write_group(directory, "chunks")
    for spec, values in zip(chunk_specs(), (sizes, mtimes), strict=True):
        write_array(directory, spec, values)
    record = ProfileRecord(
        trace_sha256=trace.digest,
        kvtrace_version=__version__,
        created_at=time.time(),
        num_tokens=len(trace.tokens),
        num_chunks=len(sizes),
        cells=tuple(_cell_records(cells)),
        tensors=records,
    )
    (directory / PROFILE_FILE).write_text(seal(record, indent=1) + "\n", encoding="utf-8")
    return StoredProfile(directory, record)


def put_profile(made: StoredProfile, trace: Trace, cells: Cells, path: Path) -> StoredProfile:
    """Give a profile its place, and return it there; or the one that another process has put there meanwhile.

    Raises OSError: it cannot have that place.
    """
    with locked(path.parent):
        if path.parent == trace.path:
            other = find_profile(trace, path.name)
            if other is not None and other.is_over(cells):
                return other
        put(made.path, path)
    return StoredProfile(path, made.record)


def _write_tensor(root: Path, tensor: TensorProfile) -> TensorRecord:
    specs = tensor_specs(tensor.record)
    write_group(root, specs["code"].path.rpartition("/")[0])
    crcs = tuple(write_array(root, spec, getattr(tensor, name)) for name, spec in specs.items())
    return tensor.record.model_copy(update={"crcs": crcs})


def _cell_records(cells: Cells) -> Iterator[CellRecord]:
    for i, workload in enumerate(cells.workload):
        yield CellRecord(
            workload=workload,
            phase="decode" if PHASES[cells.phase[i]] == "decode" else "prefill",
            position_octave=int(cells.octave[i]) if cells.octave[i] >= 0 else None,
            sampling_id=int(cells.sampling_id[i]),
            request_group=None if cells.request_group is None else int(cells.request_group[i]),
        )


def _check_chunks(trace: Trace, path: Path, record: ProfileRecord) -> tuple[int, bool]:
    """Return how many chunks were reread, and whether none is there."""
    refs = trace.block_refs()
    now = _chunk_stats(refs)
    if (now[0] < 0).all():
        return 0, True
    then = [read_array(path, spec, record.num_chunks) for spec in chunk_specs()]
    changed = np.zeros(len(refs), bool)
    for before, after in zip(then, now, strict=True):
        changed |= before != after
    if changed.any():
        for index in np.flatnonzero(changed):
            refs[index].load()
        for store in trace.ranks:
            store.check()
        _note_times(path, now)
    return int(changed.sum()), False


def _note_times(path: Path, stats: tuple[NDArray[np.int64], NDArray[np.int64]]) -> None:
    """Keep the new times, so that a copied trace is reread once and not at every use."""
    for spec, values in zip(chunk_specs(), stats, strict=True):
        with contextlib.suppress(OSError):  # a trace that cannot be written is reread the next time
            replace_array(path, spec, values)


def _chunk_stats(refs: list[BlockRef]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return size and modification time (ns) of every tensor chunk; -1 where it is missing."""
    stats = np.full((2, len(refs)), -1, np.int64)
    for index, ref in enumerate(refs):
        try:
            found = chunk_path(ref.store.path, ref.spec, ref.chunk).stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise IntegrityError(f"{ref.store.path}: cannot be read ({error.strerror})") from error
        stats[:, index] = found.st_size, found.st_mtime_ns
    return stats[0], stats[1]
