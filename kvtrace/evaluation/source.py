"""Replay one trace and write what belongs to it: every table of a run but the candidates."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvtrace.evaluation.audited import write_findings
from kvtrace.evaluation.magnitudes import write_magnitudes
from kvtrace.evaluation.profiled import replay_profile
from kvtrace.evaluation.sweep import write_sweep
from kvtrace.evaluation.tables import (
    write_cells,
    write_groups,
    write_layers,
    write_requests_and_rows,
    write_scales,
    write_vectors,
)
from kvtrace.evaluation.verify import VectorCheck, check_equal, told_of
from kvtrace.profile.ready import can_be_profiled, ready_profile, require_tensors
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvtrace.candidates.apply import AppliedScales
    from kvtrace.candidates.bind import BoundCandidate
    from kvtrace.candidates.candidate import EngineSetup
    from kvtrace.evaluation.per_token_head import OnlineSums
    from kvtrace.evaluation.reading import Progress
    from kvtrace.evaluation.sums import TensorSums, Vectors
    from kvtrace.profile.store import StoredProfile
    from kvtrace.runs.write import RunWriter
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace

Method = Literal["profile", "direct", "verify"]
"""profile: over exact counts; direct: element by element; verify: both, compared."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to replay."""

    method: Method
    device: str
    memory_bytes: int
    """For unpacked tensors while a profile is made."""
    progress: Progress | None = None
    intervals: bool = False
    """Whether to write sums by group of requests too; the first time it reads the tensors once more."""
    say: Callable[[str], None] = lambda _: None
    """Takes what a user should know of how it went."""


class SourceReplay:
    """One trace of a run."""

    def __init__(
        self,
        run: RunWriter,
        source: str,
        trace: Trace,
        bound: Sequence[BoundCandidate],
        settings: Settings,
    ) -> None:
        self._run, self._source, self._trace, self._bound = run, source, trace, bound
        self._settings = settings
        self._here = [(one.candidate, one.scales[source]) for one in bound if source in one.scales]
        self._applied = [(candidate.setup, scales) for candidate, scales in self._here]
        self._cells = find_cells(trace)
        self._were_read = False

    def write(self) -> tuple[str, bool]:
        """Write the trace's part of every table. Returns the method used, and whether tensors were read.

        A trace with float32 layers is replayed element by element whatever the method.
        """
        write_layers(self._run, self._source, self._trace)
        write_requests_and_rows(self._run, self._source, self._trace)
        for candidate, scales in self._here:
            write_scales(self._run, self._source, self._trace, candidate, scales)
        is_direct = self._settings.method == "direct" or not can_be_profiled(self._trace)
        method = self._write_directly() if is_direct else self._write_from_counts()
        if self._settings.intervals:
            self._write_groups(is_direct=is_direct)
        return method, self._were_read

    def _write_directly(self) -> str:
        if self._settings.method == "verify":
            self._settings.say("nothing was verified: float32 values are replayed one by one in any case")
        write_findings(self._run, self._source, self._trace, self._bound, None)
        self._write_cells(self._element_wise(self._cells, self._applied, self._write_vectors))
        return "direct"

    def _write_from_counts(self) -> str:
        trace, cells, settings = self._trace, self._cells, self._settings
        with self._profile(cells) as profile:
            write_findings(self._run, self._source, trace, self._bound, profile)
            write_sweep(self._run, self._source, profile, [one for one, _ in self._here], settings.device)
            write_magnitudes(self._run, self._source, profile, cells)
            sums: Iterable[TensorSums] = replay_profile(
                profile, cells, self._applied, settings.device, on_vectors=self._write_vectors
            )
            if settings.method == "verify":
                with told_of(profile):
                    sums, vectors = list(sums), VectorCheck(profile)
                    check_equal(sums, self._element_wise(cells, self._applied, vectors.add))
                    vectors.finish()
                settings.say("verified: profile and element-wise replay agree")
            self._write_cells(sums)
        return "profile"

    @contextmanager
    def _profile(self, cells: Cells, directory: str = PROFILE_DIRECTORY) -> Iterator[StoredProfile]:
        settings = self._settings
        with ready_profile(
            self._trace,
            cells,
            settings.device,
            directory=directory,
            memory_bytes=settings.memory_bytes,
            progress=settings.progress,
            say=settings.say,
        ) as (profile, were_read):
            self._were_read |= were_read
            yield profile

    def _write_groups(self, *, is_direct: bool) -> None:
        """Write the sums of static scales by group of requests."""
        settings, cells = self._settings, find_group_cells(self._trace)
        # What an online policy does is not in a profile, and is kept by cell alone.
        static = [number for number, (candidate, _) in enumerate(self._here) if candidate.policy is None]
        names = [self._here[number][0].name for number in static]
        applied = [self._applied[number] for number in static]
        if is_direct:
            for sums in self._element_wise(cells, applied):
                write_groups(self._run, self._source, cells, names, sums)
            return
        with self._profile(cells, GROUPS_DIRECTORY) as profile:
            all_sums: Iterable[TensorSums] = replay_profile(profile, cells, applied, settings.device)
            if settings.method == "verify":
                with told_of(profile):
                    all_sums = list(all_sums)
                    check_equal(all_sums, self._element_wise(cells, applied))
            for sums in all_sums:
                write_groups(self._run, self._source, cells, names, sums)

    def _element_wise(
        self,
        cells: Cells,
        applied: Sequence[tuple[EngineSetup | None, AppliedScales]],
        on_vectors: Callable[[Vectors], None] | None = None,
    ) -> Iterable[TensorSums]:
        from kvtrace.evaluation.direct import replay_directly  # torch: over a ready profile nothing needs it

        require_tensors(self._trace, "replaying them element by element")
        self._were_read = True
        return replay_directly(
            self._trace,
            cells,
            applied,
            self._settings.device,
            on_vectors=on_vectors,
            progress=self._settings.progress,
        )

    def _write_vectors(self, vectors: Vectors) -> None:
        write_vectors(self._run, self._source, vectors)

    def _write_cells(self, all_sums: Iterable[TensorSums]) -> None:
        names = [candidate.name for candidate, _ in self._here]
        online = list(self._online())
        for sums in all_sums:
            for number, own in online:
                own.fill(sums, number)
            write_cells(self._run, self._source, self._cells, names, sums)

    def _online(self) -> Iterator[tuple[int, OnlineSums]]:
        policies = [(i, one.policy) for i, (one, _) in enumerate(self._here) if one.policy]
        if not policies:
            return
        from kvtrace.evaluation.per_token_head import online_sums  # torch

        for number, policy in policies:
            settings = self._settings
            sums, were_read = online_sums(
                self._trace, self._cells, policy, settings.device, settings.progress
            )
            self._were_read |= were_read
            yield number, sums
