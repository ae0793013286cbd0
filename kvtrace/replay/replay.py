"""The main path: traces and candidates in, a run out."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvtrace import __version__
from kvtrace.profile.build import DEFAULT_MEMORY_BYTES
from kvtrace.profile.ready import can_be_profiled, ready_profile
from kvtrace.replay.audited import write_findings
from kvtrace.replay.bind import bind_candidates
from kvtrace.replay.device import choose_device
from kvtrace.replay.direct import replay_directly
from kvtrace.replay.per_token_head import online_sums
from kvtrace.replay.profiled import replay_profile
from kvtrace.replay.tables import (
    write_candidates,
    write_cells,
    write_requests_and_rows,
    write_scales,
    write_vectors,
)
from kvtrace.replay.verify import check_equal
from kvtrace.runs.record import RunRecord, SourceRecord
from kvtrace.runs.write import RunWriter, check_output
from kvtrace.trace.cells import find_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from kvtrace.replay.bind import BoundCandidate
    from kvtrace.replay.candidate import Candidate
    from kvtrace.replay.reading import Progress
    from kvtrace.replay.sums import TensorSums
    from kvtrace.trace.reader import Trace

Method = Literal["profile", "direct", "verify"]
"""profile: over exact counts; direct: element by element; verify: both, compared."""


def replay(
    traces: Sequence[Trace],
    candidates: Sequence[Candidate],
    out: Path | str,
    *,
    method: Method = "profile",
    device: str | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Replay the traces through every candidate and write the run to directory `out`; return its path.

    device: cpu, cuda or cuda:N; None: CUDA if there is one. memory_bytes: for unpacked tensors.
    progress: called with (done, total) while tensors are read.
    A trace with float32 layers is replayed element by element whatever the method; run.json says so. An
    invalid candidate is written with its reason; the others go on. The run appears under its name only when
    it is complete.
    Raises NoValidCandidateError, DeviceError, OutputExistsError; IntegrityError where a chunk is damaged;
    ReplayMismatchError from `verify`.
    """
    check_output(Path(out), force=force)
    chosen = choose_device(device)
    sources = name_sources(traces)
    bound = bind_candidates(candidates, sources)
    records = []
    with RunWriter(out, force=force) as run:
        write_candidates(run, bound)
        for source, trace in sources.items():
            write_requests_and_rows(run, source, trace)
            writer = _SourceWriter(run, source, trace, bound)
            used, reread = writer.replay(method, chosen, memory_bytes, progress)
            records.append(_source_record(source, trace, used, tensors_reread=reread))
        return run.finish(_record(records, chosen))


def name_sources(traces: Sequence[Trace]) -> dict[str, Trace]:
    """Return the traces by their `source`: the trace's name, numbered where several share it."""
    sources: dict[str, Trace] = {}
    for trace in traces:
        number, name = 1, trace.name
        while name in sources:
            number += 1
            name = f"{trace.name}#{number}"
        sources[name] = trace
    return sources


class _SourceWriter:
    """Replays one trace and writes its scales, cells and vectors."""

    def __init__(self, run: RunWriter, source: str, trace: Trace, bound: Sequence[BoundCandidate]) -> None:
        here = [(one.candidate, one.scales[source]) for one in bound if source in one.scales]
        for candidate, scales in here:
            write_scales(run, source, trace, candidate.name, candidate.setup, scales)
        self._run, self._source, self._trace, self._bound = run, source, trace, bound
        self._names = [candidate.name for candidate, _ in here]
        self._applied = [(candidate.setup, scales) for candidate, scales in here]
        self._cells = find_cells(trace)
        self._policies = {
            number: candidate.policy for number, (candidate, _) in enumerate(here) if candidate.policy
        }

    def replay(
        self, method: Method, device: torch.device, memory_bytes: int, progress: Progress | None
    ) -> tuple[str, bool]:
        """Return the method used, and whether tensors were read."""
        trace, cells = self._trace, self._cells
        if method == "direct" or not can_be_profiled(trace):
            write_findings(self._run, self._source, trace, self._bound, None)
            self._write(
                replay_directly(
                    trace,
                    cells,
                    self._applied,
                    device,
                    on_vectors=lambda vectors: write_vectors(self._run, self._source, vectors),
                    progress=progress,
                ),
                device,
                progress,
            )
            return "direct", True
        with ready_profile(trace, cells, device, memory_bytes=memory_bytes, progress=progress) as (
            profile,
            reread,
        ):
            write_findings(self._run, self._source, trace, self._bound, profile)
            sums = replay_profile(
                profile,
                cells,
                self._applied,
                device,
                on_vectors=lambda vectors: write_vectors(self._run, self._source, vectors),
            )
            if method == "profile":
                self._write(sums, device, progress)
                return "profile", reread
            both = list(sums)
        check_equal(both, replay_directly(trace, cells, self._applied, device, progress=progress))
        self._write(both, device, progress)
        return "profile", True

    def _write(self, all_sums: Iterable[TensorSums], device: torch.device, progress: Progress | None) -> None:
        online = {
            number: online_sums(self._trace, self._cells, policy, device, progress)
            for number, policy in self._policies.items()
        }
        for sums in all_sums:
            for number, own in online.items():
                own.fill(sums, number)
            write_cells(self._run, self._source, self._cells, self._names, sums)


def _record(sources: Sequence[SourceRecord], device: torch.device) -> RunRecord:
    methods = {source.method for source in sources}
    return RunRecord(
        kvtrace_version=__version__,
        created_at=time.time(),
        device=str(device),
        method=methods.pop() if len(methods) == 1 else "mixed",
        versions={name: version(name) for name in ("torch", "numpy", "pyarrow")},
        sources=tuple(sources),
    )


def _source_record(name: str, trace: Trace, method: str, *, tensors_reread: bool) -> SourceRecord:
    return SourceRecord(
        name=name,
        path=str(trace.path),
        trace_id=trace.record.trace_id,
        trace_sha256=trace.digest,
        created_at=trace.record.created_at,
        model=trace.record.model,
        engine=trace.record.engine,
        has_fp8_cache=trace.has_fp8_cache,
        attention_backends=tuple(sorted({layer.backend for layer in trace.layers.values()})),
        closed=all(store.commit.closed for store in trace.ranks),
        method=method,
        tensors_reread=tensors_reread,
    )
