"""The main path: traces and candidates in, a run out."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import __version__
from kvtrace.profile.build import DEFAULT_MEMORY_BYTES
from kvtrace.replay.bind import bind_candidates
from kvtrace.replay.device import choose_device
from kvtrace.replay.serving import measured_manifest
from kvtrace.replay.source import Method, Settings, SourceReplay
from kvtrace.replay.tables import write_candidates
from kvtrace.runs.manifest import complete_manifest
from kvtrace.runs.record import RunRecord, SourceRecord
from kvtrace.runs.write import RunWriter, check_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvtrace.replay.bind import BoundCandidate
    from kvtrace.replay.candidate import Candidate
    from kvtrace.replay.reading import Progress
    from kvtrace.runs.manifest import ServingManifest, SuppliedManifest
    from kvtrace.runs.record import PolicyStamp
    from kvtrace.trace.reader import Trace


def replay(
    traces: Sequence[Trace],
    candidates: Sequence[Candidate],
    out: Path | str,
    *,
    method: Method = "profile",
    device: str | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    manifest: SuppliedManifest | None = None,
    policy: PolicyStamp | None = None,
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
            one = SourceReplay(run, source, trace, bound, Settings(method, chosen, memory_bytes, progress))
            used, reread = one.write()
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
