"""Replay one trace: what belongs to it in a run, value by value, as it is worked out."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvtrace.evaluation.attended import attention_sums
from kvtrace.evaluation.audited import audit_artifacts
from kvtrace.evaluation.magnitudes import magnitude_counts
from kvtrace.evaluation.ordinary import OrdinaryChannels, OrdinarySums
from kvtrace.evaluation.profiled import replay_profile
from kvtrace.evaluation.sums import CellSums, TensorSums, sums_alone
from kvtrace.evaluation.sweep import sweep
from kvtrace.evaluation.verify import verified
from kvtrace.plain_text import plain
from kvtrace.profile.ready import can_be_profiled, ready_profile, require_tensors
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.evaluation.coded_rows import CodedSums
    from kvtrace.evaluation.reading import Progress
    from kvtrace.evaluation.request import Method, ReplayRequest
    from kvtrace.evaluation.sums import Vectors
    from kvtrace.evaluation.tables import SourceValue
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace

_log = logging.getLogger(__name__)


class SourceReplay:
    """One trace of a replay."""

    def __init__(
        self,
        request: ReplayRequest,
        source: str,
        trace: Trace,
        applied: Sequence[AppliedScales],
        device: str,
        progress: Progress | None = None,
    ) -> None:
        self._request, self._source, self._trace, self._applied = request, source, trace, applied
        self._device, self._progress = device, progress
        self._cells = find_cells(trace)
        self.method: Method = "profile" if request.method != "direct" and can_be_profiled(trace) else "direct"
        """The one used: a trace with float32 layers is replayed element by element whatever the method."""
        self.were_read = False
        """Whether tensors were read; known once all values were yielded."""

    def values(self) -> Generator[SourceValue]:
        """Yield what is worked out of the trace, in the order of each table's rows. For one use.

        What is yielded is let go again: sums are held for a few layers at a time. Close it where not all is
        taken: it may hold a directory.
        """
        yield from self._applied
        yield from self._element_by_element() if self.method == "direct" else self._over_counts()
        if self._request.intervals:
            yield from self._groups()
        if self._request.attention:
            yield from attention_sums(self._trace, self._applied, self._device, self._request.checkpoint)

    def _element_by_element(self) -> Iterator[SourceValue]:
        if self._request.method == "verify":
            self._note(
                logging.WARNING, "nothing was verified: float32 values are replayed one by one in any case"
            )
        yield from audit_artifacts(self._trace, self._request.candidates, None)
        yield from self._with_coded(self._direct(self._cells, self._applied))

    def _over_counts(self) -> Iterator[SourceValue]:
        cells, applied = self._cells, self._applied
        with self._profile(cells) as profile:
            yield from audit_artifacts(self._trace, self._request.candidates, profile)
            if (swept := sweep(profile, applied, self._device)) is not None:
                yield swept
            yield from magnitude_counts(profile, cells)
            yield from self._with_coded(self._profiled(profile, cells, applied))
            if self._request.method == "verify":
                self._note(logging.INFO, "verified: profile and element-wise replay agree")

    def _groups(self) -> Iterator[SourceValue]:
        """Yield the sums of static scales by group of requests."""
        cells = find_group_cells(self._trace)
        # What is coded vector by vector is not in a profile, and is kept by cell alone.
        applied = [one for one in self._applied if one.candidate.cache is None]
        names = tuple(one.candidate.name for one in applied)
        if self.method == "direct":
            yield from _by_cell(cells, names, self._direct(cells, applied))
            return
        with self._profile(cells, GROUPS_DIRECTORY) as profile:
            yield from _by_cell(cells, names, self._profiled(profile, cells, applied, with_vectors=False))

    @contextmanager
    def _profile(self, cells: Cells, directory: str = PROFILE_DIRECTORY) -> Iterator[StoredProfile]:
        with ready_profile(
            self._trace,
            cells,
            self._device,
            directory=directory,
            memory_bytes=self._request.memory_bytes,
            progress=self._progress,
        ) as ready:
            if ready.note:
                self._note(logging.WARNING, ready.note)
            self.were_read |= ready.were_read
            yield ready.profile

    def _profiled(
        self,
        profile: StoredProfile,
        cells: Cells,
        applied: Sequence[AppliedScales],
        *,
        with_vectors: bool = True,
    ) -> Iterator[TensorSums | Vectors | OrdinarySums]:
        values = replay_profile(profile, cells, applied, self._device, with_vectors=with_vectors)
        if self._request.method != "verify":
            return values
        return verified(profile, values, self._direct(cells, applied), with_vectors=with_vectors)

    def _direct(self, cells: Cells, applied: Sequence[AppliedScales]) -> Iterator[TensorSums | Vectors]:
        from kvtrace.evaluation.direct import replay_directly  # torch: over a ready profile nothing needs it

        require_tensors(self._trace, "replaying them element by element")
        self.were_read = True
        yield from replay_directly(self._trace, cells, applied, self._device, progress=self._progress)

    def _with_coded(self, values: Iterable[TensorSums | Vectors | OrdinarySums]) -> Iterator[SourceValue]:
        """Yield the vectors, and the sums with those of cache formats filled in."""
        names = tuple(one.candidate.name for one in self._applied)
        coded = self._coded()
        for value in values:
            if isinstance(value, OrdinarySums):
                yield OrdinaryChannels(names, value)
                continue
            if not isinstance(value, TensorSums):
                yield value
                continue
            if coded is not None:
                coded.fill(value)
            without = frozenset(
                one.candidate.name for one in self._applied if not one.has_range(value.layer, value.tensor)
            )
            yield CellSums(self._cells, names, value, without)

    def _coded(self) -> CodedSums | None:
        if not any(one.codings for one in self._applied):
            return None
        from kvtrace.evaluation.coded_rows import coded_sums  # numba's kernels

        sums, were_read = coded_sums(self._trace, self._cells, self._applied, self._device, self._progress)
        self.were_read |= were_read
        return sums

    def _note(self, level: int, text: str) -> None:
        _log.log(level, "%s: %s", plain(self._source, 200), text)


def _by_cell(
    cells: Cells, names: tuple[str, ...], values: Iterable[TensorSums | Vectors | OrdinarySums]
) -> Iterator[CellSums]:
    for sums in sums_alone(values):
        yield CellSums(cells, names, sums)
