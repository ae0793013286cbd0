"""The main path: traces and candidates in, a run out."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import __version__
from kvtrace.replay.bind import bind_candidates
from kvtrace.replay.cells import find_cells
from kvtrace.replay.device import choose_device
from kvtrace.replay.direct import replay_directly
from kvtrace.replay.tables import (
    write_candidates,
    write_cells,
    write_requests_and_rows,
    write_scales,
    write_vectors,
)
from kvtrace.runs.record import RunRecord, SourceRecord
from kvtrace.runs.write import RunWriter, check_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvtrace.replay.bind import BoundCandidate
    from kvtrace.replay.candidate import Candidate
    from kvtrace.replay.reading import Progress
    from kvtrace.trace.reader import Trace


def replay(
    traces: Sequence[Trace],
    candidates: Sequence[Candidate],
    out: Path | str,
    *,
    device: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Replay the traces through every candidate and write the run to directory `out`; return its path.

    device: cpu, cuda or cuda:N; None: CUDA if there is one.
    progress: called with (blocks done, blocks of the trace).
    An invalid candidate is written with its reason; the others go on. The run appears under its name only
    when it is complete.
    Raises NoValidCandidateError, DeviceError, OutputExistsError; IntegrityError where a chunk is damaged.
    """
    check_output(Path(out), force=force)
    chosen = choose_device(device)
    sources = name_sources(traces)
    bound = bind_candidates(candidates, sources)
    with RunWriter(out, force=force) as run:
        write_candidates(run, bound)
        for source, trace in sources.items():
            write_requests_and_rows(run, source, trace)
            _replay_source(run, source, trace, bound, chosen, progress)
        return run.finish(_record(sources, chosen))


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


def _replay_source(
    run: RunWriter,
    source: str,
    trace: Trace,
    bound: Sequence[BoundCandidate],
    device: torch.device,
    progress: Progress | None,
) -> None:
    here = [(one.candidate, one.scales[source]) for one in bound if source in one.scales]
    for candidate, scales in here:
        write_scales(run, source, trace, candidate.name, candidate.setup, scales)
    cells = find_cells(trace)
    all_sums = replay_directly(
        trace,
        cells,
        [(candidate.setup, scales) for candidate, scales in here],
        device,
        on_vectors=lambda vectors: write_vectors(run, source, vectors),
        progress=progress,
    )
    names = [candidate.name for candidate, _ in here]
    for sums in all_sums:
        write_cells(run, source, cells, names, sums)


def _record(sources: dict[str, Trace], device: torch.device) -> RunRecord:
    return RunRecord(
        kvtrace_version=__version__,
        created_at=time.time(),
        device=str(device),
        method="direct",
        versions={name: version(name) for name in ("torch", "numpy", "pyarrow")},
        sources=tuple(_source_record(name, trace) for name, trace in sources.items()),
    )


def _source_record(name: str, trace: Trace) -> SourceRecord:
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
    )
