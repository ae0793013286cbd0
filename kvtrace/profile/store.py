"""Keep a profile in its trace: written whole or not at all, believed only for the trace it was made of."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from kvtrace.errors import IntegrityError
from kvtrace.files.regular import read_regular
from kvtrace.files.staging import locked, put, staged
from kvtrace.profile.arrays import read_array, write_array, write_group
from kvtrace.profile.chunk_list import chunk_stats, read_chunk_list, reread_changed, write_chunk_list
from kvtrace.profile.counts import OutlierCounts, TensorProfile
from kvtrace.profile.own_seal import is_own, own_seal
from kvtrace.profile.validate import problem_of_arrays, problem_of_record
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.chunks import chunk_path
from kvtrace.trace.format import seal, unseal
from kvtrace.trace.profile_format import (
    GROUPS_DIRECTORY,
    PROFILE_DIRECTORY,
    PROFILE_FILE,
    PROFILE_SCHEMA_VERSION,
    CellRecord,
    ProfileRecord,
    TensorRecord,
    tensor_specs,
)
from kvtrace.trace.strata import PHASES
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace

ProfileCheck = Literal["made here", "made elsewhere"]
"""Whose seal a profile carries whose counts are those of the tensors."""
_PURPOSE: Final = "profile"
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
    cells: Cells | None = None
    """What it is over, where the counts of each cell are held against its vectors as they are read."""
    _kept: list[TensorProfile] = field(default_factory=list, repr=False, compare=False)
    """All tensors, once read, where they are small: a replay goes over them five times."""

    def is_over(self, cells: Cells) -> bool:
        """Return whether its cells are these, in this order."""
        return self.record.cells == tuple(_cell_records(cells))

    def serves(self, cells: Cells) -> bool:
        """Return whether it is over these cells, and outlier channels are told apart where they can be.

        They are not in a profile of before 1.3; where the trace has no tensors any more, it serves as it is.
        """
        has_all = all(one.outlier_channels is not None for one in self.record.tensors)
        return self.is_over(cells) and (has_all or self.stands_alone or cells.request_group is not None)

    def tensors(self) -> Iterator[TensorProfile]:
        """Yield every layer's K and V, by layer; the next ones are read meanwhile, and up to 64 MiB are kept.

        Raises IntegrityError: an array is missing, damaged, or none that a profile can have.
        """
        if self._kept:
            yield from self._kept
            return
        keep, num_bytes = list[TensorProfile](), 0
        for tensor in self.all_read():
            num_bytes += tensor.num_bytes
            if num_bytes <= _KEEP_BYTES:
                keep.append(tensor)
            yield tensor
        if num_bytes <= _KEEP_BYTES:
            self._kept[:] = keep

    def check_record(self, trace: Trace) -> None:
        """Raise IntegrityError where no profile of the trace can have this record."""
        if why := problem_of_record(self.record, trace):
            raise IntegrityError(f"{self.path / PROFILE_FILE}: is invalid ({why}). {self.mend}")

    def all_read(self) -> Iterator[TensorProfile]:
        """Yield the same and keep nothing."""
        records = sorted(self.record.tensors, key=lambda tensor: (tensor.layer, tensor.tensor))
        with ThreadPoolExecutor(2, thread_name_prefix="kvtrace-read") as pool:
            for first in range(0, len(records), _READ_AHEAD):
                yield from pool.map(self.read, records[first : first + _READ_AHEAD])

    def read(self, record: TensorRecord) -> TensorProfile:
        """Return one layer's K or V. Raises IntegrityError as `tensors` does."""
        lengths = {
            "code": record.num_entries,
            "count": record.num_entries,
            "start": len(record.kv_heads) * len(self.record.cells) + 1,
            "absmax": self.record.num_tokens,
            "outlier_code": record.num_outlier_entries,
            "outlier_count": record.num_outlier_entries,
            "outlier_start": len(record.kv_heads) * len(self.record.cells) + 1,
        }
        specs = tensor_specs(record)
        crcs = record.crcs or (None,) * len(specs)
        digests = record.sha256 or (None,) * len(specs)
        arrays = {
            name: read_array(self.path, spec, lengths[name], crc, sha256, mend=self.mend)
            for (name, spec), crc, sha256 in zip(specs.items(), crcs, digests, strict=True)
        }
        own = [arrays.pop(name) for name in tuple(arrays) if name.startswith("outlier_")]
        tensor = TensorProfile(record, **arrays, outliers=OutlierCounts(*own) if own else None)
        if problem := problem_of_arrays(tensor, None if self.cells is None else self.cells.of_token):
            name, why = problem
            raise IntegrityError(f"{chunk_path(self.path, specs[name], 0)}: is invalid ({why}). {self.mend}")
        return tensor

    @property
    def mend(self) -> str:
        """Return what to do about a damaged one."""
        return _COPY_AGAIN if self.stands_alone else f"Delete {self.path}: the profile is made again"


def find_profile(trace: Trace, directory: str = PROFILE_DIRECTORY) -> StoredProfile | None:
    """Return the trace's profile; None: there is none, it is of another state of the trace, or not made here.

    A profile without the user's own seal is believed where the trace has no tensors to count: it is then all
    there is, as tensors would be.

    The tensors are not reread: every chunk's presence, size and modification time is compared with those
    at profiling, and only a chunk that differs, as in a copied trace, is read and checked, once. A trace
    without any tensor chunk is valid: the profile stands for it.
    Raises IntegrityError: some chunks are missing, one has changed and is damaged, or no profile of the trace
    can have this record.
    """
    path = trace.path / directory
    record = _record_of(trace, path)
    if record is None:
        return None
    refs = trace.block_refs()
    now = chunk_stats(refs)
    profile = StoredProfile(path, record, stands_alone=bool((now[0] < 0).all()))
    if not profile.stands_alone and not is_own(record, _PURPOSE):
        return None
    profile.check_record(trace)
    if profile.stands_alone:
        return profile
    return replace(profile, num_reread=reread_changed(trace, path, refs, now))


def is_foreign(trace: Trace, directory: str) -> bool:
    """Return whether the trace has a profile of its state that does not carry the user's own seal."""
    record = _record_of(trace, trace.path / directory)
    return record is not None and not is_own(record, _PURPOSE)


def verify_profiles(trace: Trace) -> dict[str, ProfileCheck]:
    """Recount the trace's profiles from its tensors, with numpy alone, and return what each one is.

    A profile.json that is damaged, or of another state or other cells, is no fault: without it a replay makes
    the profile again.
    Raises IntegrityError: an array is damaged, or differs from the tensors; the text names its file.
    """
    found: dict[str, ProfileCheck] = {}
    for directory, find in ((PROFILE_DIRECTORY, find_cells), (GROUPS_DIRECTORY, find_group_cells)):
        path = trace.path / directory
        if record := _record_of(trace, path):
            cells = find(trace)
            profile = StoredProfile(path, record, cells=cells)
            profile.check_record(trace)
            read_chunk_list(path, record.num_chunks)
            if profile.is_over(cells):
                _recount(trace, profile, cells)
                found[directory] = "made here" if is_own(record, _PURPOSE) else "made elsewhere"
    return found


def _recount(trace: Trace, profile: StoredProfile, cells: Cells) -> None:
    from kvtrace.profile.build import profile_tensors

    records = {(one.layer, one.tensor): one for one in profile.record.tensors}
    for counted in profile_tensors(trace, cells, "numpy"):
        record = records[counted.record.layer, counted.record.tensor]
        stored = profile.read(record)
        if record.outlier_channels not in (None, counted.record.outlier_channels):
            raise IntegrityError(
                f"{profile.path / PROFILE_FILE}: is invalid (the outlier channels of layer {record.layer} "
                f"{record.tensor} are others in the tensors). {profile.mend}"
            )
        for name, spec in tensor_specs(record).items():
            if not np.array_equal(stored.arrays[name], counted.arrays[name]):
                file = chunk_path(profile.path, spec, 0)
                raise IntegrityError(
                    f"{file}: is invalid (it differs from the tensors, counted again). {profile.mend}"
                )


def _record_of(trace: Trace, path: Path) -> ProfileRecord | None:
    """Return the record of a profile of this state of the trace; None where there is no such one."""
    try:
        # A link could have what is kept with a profile written elsewhere.
        if path.is_symlink():
            return None
        record = unseal(read_regular(path / PROFILE_FILE), ProfileRecord)
    except (OSError, ValueError):
        return None
    if record.schema_version.split(".")[0] != PROFILE_SCHEMA_VERSION.split(".")[0]:
        return None
    return record if record.trace_sha256 == trace.digest else None


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
    sizes, mtimes = chunk_stats(trace.block_refs())
    records = tuple(_write_tensor(directory, tensor) for tensor in tensors)
    write_chunk_list(directory, (sizes, mtimes))
    record = ProfileRecord(
        trace_sha256=trace.digest,
        kvtrace_version=__version__,
        created_at=time.time(),
        num_tokens=len(trace.tokens),
        num_chunks=len(sizes),
        cells=tuple(_cell_records(cells)),
        tensors=records,
    )
    record = record.model_copy(update={"seal": own_seal(record, _PURPOSE)})
    (directory / PROFILE_FILE).write_text(seal(record, indent=1) + "\n", encoding="utf-8")
    return StoredProfile(directory, record, cells=cells)


def put_profile(made: StoredProfile, trace: Trace, cells: Cells, path: Path) -> StoredProfile:
    """Give a profile its place, and return it there; or the one that another process has put there meanwhile.

    Raises OSError: it cannot have that place.
    """
    with locked(path.parent):
        if path.parent == trace.path:
            other = find_profile(trace, path.name)
            if other is not None and other.serves(cells):
                return other
        put(made.path, path)
    return StoredProfile(path, made.record, cells=cells)


def _write_tensor(root: Path, tensor: TensorProfile) -> TensorRecord:
    specs = tensor_specs(tensor.record)
    write_group(root, specs["code"].path.rpartition("/")[0])
    files = [write_array(root, spec, tensor.arrays[name]) for name, spec in specs.items()]
    return tensor.record.model_copy(
        update={"crcs": tuple(f.crc for f in files), "sha256": tuple(f.sha256 for f in files)}
    )


def _cell_records(cells: Cells) -> Iterator[CellRecord]:
    for i, workload in enumerate(cells.workload):
        yield CellRecord(
            workload=workload,
            phase="decode" if PHASES[cells.phase[i]] == "decode" else "prefill",
            position_octave=int(cells.octave[i]) if cells.octave[i] >= 0 else None,
            sampling_id=int(cells.sampling_id[i]),
            request_group=None if cells.request_group is None else int(cells.request_group[i]),
        )
