"""Replay one trace and write what belongs to it: rows, scales, findings, sweep, vectors, cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvtrace.evaluation.audited import write_findings
from kvtrace.evaluation.direct import replay_directly
from kvtrace.evaluation.per_token_head import online_sums
from kvtrace.evaluation.profiled import replay_profile
from kvtrace.evaluation.sweep import write_sweep
from kvtrace.evaluation.tables import write_cells, write_requests_and_rows, write_scales, write_vectors
from kvtrace.evaluation.verify import check_equal
from kvtrace.profile.ready import can_be_profiled, ready_profile
from kvtrace.trace.cells import find_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from kvtrace.evaluation.bind import BoundCandidate
    from kvtrace.evaluation.reading import Progress
    from kvtrace.evaluation.sums import TensorSums, Vectors
    from kvtrace.runs.write import RunWriter
    from kvtrace.trace.reader import Trace

Method = Literal["profile", "direct", "verify"]
"""profile: over exact counts; direct: element by element; verify: both, compared."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to replay."""

    method: Method
    device: torch.device
    memory_bytes: int
    """For unpacked tensors while a profile is made."""
    progress: Progress | None = None


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

    def write(self) -> tuple[str, bool]:
        """Write the trace's part of every table. Returns the method used, and whether tensors were read.

        A trace with float32 layers is replayed element by element whatever the method.
        """
        write_requests_and_rows(self._run, self._source, self._trace)
        for candidate, scales in self._here:
            write_scales(self._run, self._source, self._trace, candidate.name, candidate.setup, scales)
        if self._settings.method == "direct" or not can_be_profiled(self._trace):
            return self._write_directly()
        return self._write_from_counts()

    def _write_directly(self) -> tuple[str, bool]:
        write_findings(self._run, self._source, self._trace, self._bound, None)
        self._write_cells(self._element_wise(keep_vectors=True))
        return "direct", True

    def _write_from_counts(self) -> tuple[str, bool]:
        trace, cells, settings = self._trace, self._cells, self._settings
        with ready_profile(
            trace, cells, settings.device, memory_bytes=settings.memory_bytes, progress=settings.progress
        ) as (profile, was_made_now):
            write_findings(self._run, self._source, trace, self._bound, profile)
            write_sweep(self._run, self._source, profile, [one for one, _ in self._here], settings.device)
            sums: Iterable[TensorSums] = replay_profile(
                profile, cells, self._applied, settings.device, on_vectors=self._write_vectors
            )
            if settings.method == "verify":
                sums = list(sums)
                check_equal(sums, self._element_wise(keep_vectors=False))
            self._write_cells(sums)
        return "profile", was_made_now or settings.method == "verify"

    def _element_wise(self, *, keep_vectors: bool) -> Iterable[TensorSums]:
        return replay_directly(
            self._trace,
            self._cells,
            self._applied,
            self._settings.device,
            on_vectors=self._write_vectors if keep_vectors else None,
            progress=self._settings.progress,
        )

    def _write_vectors(self, vectors: Vectors) -> None:
        write_vectors(self._run, self._source, vectors)

    def _write_cells(self, all_sums: Iterable[TensorSums]) -> None:
        names = [candidate.name for candidate, _ in self._here]
        online = {
            number: online_sums(
                self._trace, self._cells, candidate.policy, self._settings.device, self._settings.progress
            )
            for number, (candidate, _) in enumerate(self._here)
            if candidate.policy
        }
        for sums in all_sums:
            for number, own in online.items():
                own.fill(sums, number)
            write_cells(self._run, self._source, self._cells, names, sums)
