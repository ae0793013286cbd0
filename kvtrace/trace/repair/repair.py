"""`kvtrace inspect --repair`: a new trace of what is provably good in a damaged one."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError, IntegrityError, OutputExistsError
from kvtrace.files.staging import staged
from kvtrace.trace.format import (
    REQUESTS_FILE,
    SAMPLING_FILE,
    TRACE_FILE,
    RankRecord,
    RequestRecord,
    SamplingRecord,
    rank_directory,
    seal,
)
from kvtrace.trace.opening import read_trace_record
from kvtrace.trace.reader import digest_of_records, open_trace
from kvtrace.trace.repair.record import REPAIR_FILE, LostChunk, LostLines, RepairRecord
from kvtrace.trace.repair.salvage import SoundLines, SoundStore, sound_lines, sound_store
from kvtrace.trace.repair.text import loss_lines
from kvtrace.trace.repair.write import count_shortfall, write_lines, write_record, write_store
from kvtrace.trace.requests import read_sealed
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.trace.format import TraceRecord

_MAX_REASONS: Final = 4


def repair_trace(path: Path, new: Path) -> RepairRecord:
    """Write what is provably good of the trace in `path` to `new`, and return what was lost.

    The original is only read. A chunk is good if its file has the CRC32C that was committed, a line if its
    seal fits. What is lost is absent in `new`: values, rows whose columns are damaged, requests whose end is
    not known. The profile is left out; it is made again.
    Raises OutputExistsError: `new` exists. InputError: nothing can be kept, or `new` cannot be written.
    """
    if new.exists() or new.is_symlink():
        raise OutputExistsError(f"{new}: exists; a repair never overwrites anything, give another name")
    if new.resolve().is_relative_to(path.resolve()):
        raise InputError(
            f"{new}: lies inside the damaged trace, which stays as it is; give a place beside it"
        )
    record = read_trace_record(path)
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        with staged(new, private=True) as partial:
            repair = _Repair(path, record).write(partial)
            partial.rename(new)
    except OSError as error:
        raise InputError(f"{new}: cannot be written: {error.strerror}") from error
    return repair


class _Repair:
    """One repair: everything that is sound, read before anything is written."""

    def __init__(self, path: Path, record: TraceRecord) -> None:
        self._path, self._record = path, record
        self._requests: SoundLines[RequestRecord] = self._lines(REQUESTS_FILE, RequestRecord)
        self._sampling: SoundLines[SamplingRecord] = self._lines(SAMPLING_FILE, SamplingRecord)
        self._stores: dict[int, SoundStore] = {}
        self._empty: dict[int, RankRecord] = {}
        self._lost_ranks: list[int] = []
        for rank in range(record.engine.tensor_parallel_size * record.engine.pipeline_parallel_size):
            self._look_at(rank)
        self._beside = self._stores_beside()
        self._left_out = self._requests_left_out()

    def write(self, new: Path) -> RepairRecord:
        """Write the new trace into the empty directory `new`, and read it back."""
        digest = digest_of_records(
            self._path,
            self._record,
            [(store.path, store.commit) for store in (*self._stores.values(), *self._beside)],
        )
        lines = [
            line
            for line, request in zip(self._requests.lines, self._requests.records, strict=True)
            if request.request not in self._left_out
        ]
        write_lines(new / REQUESTS_FILE, lines, self._requests.num_unwritten)
        write_lines(new / SAMPLING_FILE, self._sampling.lines)
        kept = {request.request for request in self._requests.records} - self._left_out
        for number, store in self._stores.items():
            write_store(new / rank_directory(number), store, kept)
        for store in self._beside:
            write_store(new / store.path.name, store, kept)
        for number, rank in self._empty.items():
            write_store(new / rank_directory(number), rank, kept)
        record = self._record.model_copy(update={"line_commits": True, "repaired_from": digest})
        write_record(new / TRACE_FILE, seal(record, indent=1))
        repair = self._report(digest)
        write_record(new / REPAIR_FILE, seal(repair, indent=1))
        self._check(new, repair)
        return repair

    def _lines(self, name: str, kind: type) -> SoundLines:  # type: ignore[type-arg]
        return sound_lines(self._path / name, kind, committed=self._record.line_commits, name=name)

    def _look_at(self, number: int) -> None:
        store = self._path / rank_directory(number)
        try:
            found = sound_store(store)
            if found.rank.trace_id != self._record.trace_id:
                raise IntegrityError(f"{store}: belongs to another trace")
            self._stores[number] = found
        except IntegrityError:
            try:
                rank = read_sealed(store / "rank.json", RankRecord)
            except IntegrityError:
                self._lost_ranks.append(number)
            else:
                if (rank.trace_id, rank.rank) == (self._record.trace_id, number):
                    self._empty[number] = rank
                else:
                    self._lost_ranks.append(number)

    def _stores_beside(self) -> list[SoundStore]:
        """Return what is there for attention, if all of it and every rank has sound records; else nothing."""
        places = [place for kind in ("context", "queries") for place in self._path.glob(f"{kind}-*.zarr")]
        self._stores_left_out: tuple[str, ...] = ()
        try:
            if self._empty or self._lost_ranks:
                raise IntegrityError("a rank's own records are lost")
            found = [sound_store(place) for place in sorted(places)]
            if any(store.rank.trace_id != self._record.trace_id for store in found):
                raise IntegrityError("a store belongs to another trace")
        except IntegrityError:
            self._stores_left_out = tuple(sorted(place.name for place in places))
            return []
        return found

    def _requests_left_out(self) -> set[int]:
        """Return the requests of which it cannot be told which rows count."""
        last = {request.request: request for request in self._requests.records}
        sampling = {rules.sampling_id for rules in self._sampling.records}
        speculative = bool(self._record.engine.settings.get("speculative_config"))
        stores = (*self._stores.values(), *self._beside)
        rows_unknown = any(c.request is None for store in stores for c in store.chunks)
        return {
            number
            for number, request in last.items()
            if request.sampling_id not in sampling
            # Its end may be among the lost lines, and with it the positions that hold rejected drafts.
            or (self._requests.lost is not None and request.status == "running")
            # A lost row may be the last write of a position that an earlier, kept row has too.
            or (rows_unknown and (speculative or request.preemptions or request.status == "running"))
        }

    def _report(self, digest: str) -> RepairRecord:
        chunks = tuple(self._lost_chunks())
        stores = (*self._stores.values(), *self._beside)
        all_rows = {
            (s.rank.rank, s.rank.holds, c): chunk.commit.num_rows
            for s in stores
            for c, chunk in enumerate(s.chunks)
        }
        touched = {(lost.rank, lost.holds, lost.chunk) for lost in chunks}
        gone = {(lost.rank, lost.holds, lost.chunk) for lost in chunks if lost.layer is None}
        return RepairRecord(
            repaired_at=time.time(),
            kvtrace_version=__version__,
            from_digest=digest,
            num_rows=sum(all_rows.values()),
            num_rows_kept=sum(rows for key, rows in all_rows.items() if key not in touched),
            num_rows_in_part=sum(all_rows[key] for key in touched - gone),
            chunks=chunks,
            lines=tuple(self._lost_lines()),
            requests_left_out=tuple(sorted(self._left_out)),
            lost_ranks=tuple(self._lost_ranks),
            emptied_ranks=tuple(self._empty),
            stores_left_out=self._stores_left_out,
            rewritten=tuple(file for store in stores for file in store.rewritten),
        )

    def _lost_chunks(self) -> Iterator[LostChunk]:
        for store in (*self._stores.values(), *self._beside):
            for place, chunk in enumerate(store.chunks):
                requests = None if chunk.request is None else tuple(sorted(set(chunk.request.tolist())))
                common = {
                    "rank": store.rank.rank,
                    "holds": store.rank.holds,
                    "chunk": place,
                    "num_rows": chunk.commit.num_rows,
                    "requests": requests,
                }
                if requests is None:
                    problem = next(iter(chunk.problems.values()), "its committed checksums cannot be told")
                    yield LostChunk(**common, problem=problem)
                    continue
                for name, problem in chunk.problems.items():
                    _, layer, tensor = name.split("/")
                    yield LostChunk(**common, layer=int(layer), tensor=tensor, problem=problem)

    def _lost_lines(self) -> Iterator[LostLines]:
        dropped = [store.dropped.lost for store in (*self._stores.values(), *self._beside)]
        for lost in (self._requests.lost, self._sampling.lost, *dropped):
            if lost is not None:
                yield lost

    def _check(self, new: Path, repair: RepairRecord) -> None:
        """Count what the new trace lacks, and reread it. Raises InputError: nothing can be kept."""
        try:
            count_shortfall(new, self._stores, num_lost_ranks=len(self._lost_ranks))
            repaired = open_trace(new)
            for store in (*repaired.ranks, *repaired.attention.all):
                store.verify()
        except InputError as error:
            reason = "; ".join(islice(loss_lines(repair), _MAX_REASONS))
            if repair.is_complete:  # there was nothing in it, damage or not
                reason = str(error).replace(str(new), str(self._path))
            raise InputError(f"{self._path}: nothing can be kept: {reason}") from error
