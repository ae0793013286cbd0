"""The main path: a request in, a run out."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.candidates.bind import bind_candidates
from kvtrace.errors import InputError
from kvtrace.evaluation.device import choose_device
from kvtrace.evaluation.serving import attention_backends, measured_manifest
from kvtrace.evaluation.source import SourceReplay
from kvtrace.evaluation.tables import write_candidates, write_source
from kvtrace.plain_text import plain
from kvtrace.runs.manifest import complete_manifest
from kvtrace.runs.record import RunRecord, SourceRecord
from kvtrace.runs.write import RunWriter, check_output
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.candidates.bind import Bound
    from kvtrace.evaluation.reading import Progress
    from kvtrace.evaluation.request import ReplayRequest
    from kvtrace.runs.manifest import ServingManifest
    from kvtrace.trace.reader import Trace

_log = logging.getLogger(__name__)


def replay(
    request: ReplayRequest, out: Path | str, *, force: bool = False, progress: Progress | None = None
) -> Path:
    """Replay the traces through every candidate and write the run to directory `out`; return its path.

    force: overwrite a run that is there. progress: called with (done, total) while tensors are read.
    An invalid candidate is written with its reason; the others go on. The run appears under its name only
    when it is complete. What was read, verified or not kept is logged.
    Raises NoValidCandidateError, DeviceError, OutputExistsError; InputError where the manifest contradicts
    the traces, the output lies inside a trace, or tensors that are needed are not there any more;
    IntegrityError where a chunk is damaged; ReplayMismatchError from `verify`.
    """
    check_output(Path(out), force=force)
    _refuse_inside(Path(out), request.traces)
    device = choose_device(request.device)
    sources = name_sources(request.traces)
    bound = bind_candidates(request.candidates, sources)
    manifest = _manifest(request, bound)
    records = []
    for name, reason in bound.reasons.items():
        _log.info("%s: invalid, not scored: %s", plain(name, 200), plain(str(reason), 1_000))
    with RunWriter(out, force=force) as run:
        write_candidates(run, bound)
        for source, trace in sources.items():
            one = SourceReplay(request, source, trace, bound.in_source(source), device, progress)
            with closing(one.values()) as values:
                write_source(run, source, trace, values)
            records.append(_source_record(source, trace, one.method, tensors_reread=one.were_read))
        path = run.finish(_record(request, records, device, manifest))
    for record in records:
        _log_what_was_read(record)
    return path


def _refuse_inside(out: Path, traces: Sequence[Trace]) -> None:
    for trace in traces:
        if out.resolve().is_relative_to(trace.path.resolve()):
            raise InputError(f"{out}: lies inside the trace {trace.path}; give a place beside it")


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


def _manifest(request: ReplayRequest, bound: Bound) -> ServingManifest:
    supplied = request.manifest
    candidate_id = supplied.manifest.candidate_id if supplied else None
    return complete_manifest(measured_manifest(request.traces, bound, candidate_id), supplied)


def _record(
    request: ReplayRequest, sources: Sequence[SourceRecord], device: str, manifest: ServingManifest
) -> RunRecord:
    policy = request.policy
    methods = {source.method for source in sources}
    return RunRecord(
        kvtrace_version=__version__,
        created_at=time.time(),
        device=device,
        method=methods.pop() if len(methods) == 1 else "mixed",
        versions={name: version(name) for name in ("torch", "numpy", "pyarrow")},
        sources=tuple(sources),
        replays_attention=request.attention,
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
        running=trace.is_running,
        method=method,
        tensors_reread=tensors_reread,
    )


def _log_what_was_read(source: SourceRecord) -> None:
    name = plain(source.name, 200)
    if not source.tensors_reread:
        _log.info("%s: its profile was used, tensors were not reread (inspect --verify does)", name)
    elif source.method == "direct":
        _log.info("%s: replayed element by element", name)
