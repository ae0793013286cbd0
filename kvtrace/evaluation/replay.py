"""The main path: traces and candidates in, a run out."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import __version__
from kvtrace.candidates.bind import bind_candidates
from kvtrace.errors import InputError
from kvtrace.evaluation.device import choose_device
from kvtrace.evaluation.serving import attention_backends, measured_manifest
from kvtrace.evaluation.source import Method, Settings, SourceReplay
from kvtrace.evaluation.tables import write_candidates
from kvtrace.plain_text import plain
from kvtrace.profile.build import DEFAULT_MEMORY_BYTES
from kvtrace.runs.manifest import complete_manifest
from kvtrace.runs.record import RunRecord, SourceRecord
from kvtrace.runs.write import RunWriter, check_output
from kvtrace.trace.several import refuse_same_capture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvtrace.candidates.bind import BoundCandidate
    from kvtrace.candidates.candidate import Candidate
    from kvtrace.evaluation.reading import Progress
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
    intervals: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Replay the traces through every candidate and write the run to directory `out`; return its path.

    device: cpu, cuda or cuda:N; None: CUDA if there is one. memory_bytes: for unpacked tensors.
    manifest: fields that the traces do not hold. policy: the limits that the run will be held against.
    intervals: write sums by group of requests too, which intervals of value-level ratios need.
    progress: called with (done, total) while tensors are read. say: takes lines on what was read, verified or
    not kept.
    A trace with float32 layers is replayed element by element whatever the method; run.json says so. An
    invalid candidate is written with its reason; the others go on. The run appears under its name only when
    it is complete.
    Raises NoValidCandidateError, DeviceError, OutputExistsError; InputError where the manifest contradicts
    the traces, two traces are of one capture, two candidates share a name, the output lies inside a trace, or
    tensors that are needed are not there any more; IntegrityError where a chunk is damaged;
    ReplayMismatchError from `verify`.
    """
    check_output(Path(out), force=force)
    _refuse_inside(Path(out), traces)
    refuse_same_capture(traces)
    _refuse_same_name(candidates)
    chosen = choose_device(device)
    sources = name_sources(traces)
    bound = bind_candidates(candidates, sources)
    complete = _manifest(traces, bound, manifest)
    records = []
    with RunWriter(out, force=force) as run:
        write_candidates(run, bound)
        for source, trace in sources.items():
            about = partial(_about, say, source)
            settings = Settings(method, chosen, memory_bytes, progress, intervals, about)
            one = SourceReplay(run, source, trace, bound, settings)
            used, reread = one.write()
            records.append(_source_record(source, trace, used, tensors_reread=reread))
        return run.finish(_record(records, chosen, complete, policy))


def _about(say: Callable[[str], None], source: str, line: str) -> None:
    say(f"{plain(source, 200)}: {line}")


def _refuse_inside(out: Path, traces: Sequence[Trace]) -> None:
    for trace in traces:
        if out.resolve().is_relative_to(trace.path.resolve()):
            raise InputError(f"{out}: lies inside the trace {trace.path}; give a place beside it")


def _refuse_same_name(candidates: Sequence[Candidate]) -> None:
    for name, number in Counter(candidate.name for candidate in candidates).items():
        if number > 1:
            raise InputError(f"{number} candidates are called {name!r}; each needs a name of its own")


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


def _manifest(
    traces: Sequence[Trace], bound: Sequence[BoundCandidate], supplied: SuppliedManifest | None
) -> ServingManifest:
    candidate_id = supplied.manifest.candidate_id if supplied else None
    return complete_manifest(measured_manifest(traces, bound, candidate_id), supplied)


def _record(
    sources: Sequence[SourceRecord],
    device: str,
    manifest: ServingManifest,
    policy: PolicyStamp | None,
) -> RunRecord:
    methods = {source.method for source in sources}
    return RunRecord(
        kvtrace_version=__version__,
        created_at=time.time(),
        device=device,
        method=methods.pop() if len(methods) == 1 else "mixed",
        versions={name: version(name) for name in ("torch", "numpy", "pyarrow")},
        sources=tuple(sources),
        policy_sha256=policy.sha256 if policy else None,
        policy_date=policy.date if policy else None,
        manifest=manifest,
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
        has_fp8_cache=trace.cache_kind == "static_fp8",
        cache_dtypes=trace.cache_dtypes,
        attention_backends=attention_backends(trace),
        closed=all(store.commit.closed for store in trace.ranks),
        method=method,
        tensors_reread=tensors_reread,
    )
