"""What a trace holds: the answer of `kvtrace inspect`, as data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import Field

from kvtrace.trace.cache_dtypes import CacheKind  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.trace.completeness import expected_positions, rows_uncommitted
from kvtrace.trace.draft_summary import DraftsSummary, summarize_drafts
from kvtrace.trace.format import (
    REQUESTS_FILE,
    EngineRecord,
    ModelRecord,
    PrivacyRecord,
    Record,
    SamplingRecord,
)
from kvtrace.trace.liveness import last_commit_at
from kvtrace.trace.repair.record import RepairRecord  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.trace.requests import read_lines_commit
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from kvtrace.trace.reader import Trace

INSPECT_SCHEMA_VERSION: Final = "1.5"


class LayerSummary(Record):
    """One layer as the engine ran it."""

    layer: int
    kv_heads: tuple[int, ...]
    head_dim: int | None = None
    """Of K."""
    backend: str
    kv_cache_dtype: str
    has_fp8_cache: bool
    """Static FP8: the scales below were in use."""
    cache_kind: CacheKind
    """Since 1.1."""
    k_scale: tuple[float, ...]
    """As the engine held it, per head of `kv_heads`; in effect where `cache_kind` is static_fp8."""
    v_scale: tuple[float, ...]


class CoverageCell(Record):
    """Tokens and requests of one workload × phase × position octave."""

    workload: str
    phase: str
    position_octave: int
    num_tokens: int
    num_requests: int


class Completeness(Record):
    """Whether every position that the sampling rules chose is there, over finished sampled requests."""

    num_expected: int
    """Positions that the rules chose and the model computed."""
    num_stored: int
    num_dropped: int
    """Rows lost on purpose or by a fault, summed over ranks."""
    num_missing_positions: int
    """Positions that were not captured, on the sampling grid or not: prefix-cache hits, and the next."""
    num_switched_off_positions: int
    """Those of them that were computed while capture was switched off."""
    num_requests_with_missing: int
    num_unfinished_requests: int
    """Sampled requests without an end record: how much of them is missing is not known."""
    dropped_by_reason: dict[str, int]
    num_pending: int = 0
    """Rows of finished requests that wait for a commit while the engine runs, over ranks. Since 1.4."""
    num_uncommitted: int = 0
    """Rows of finished requests that a killed engine had not committed, over ranks. Since 1.4."""
    num_superseded: int
    num_unknown_request: int
    num_beyond_end: int
    num_rejected: int = 0
    """Rows of rejected drafts, or that may be, whose token has no row. Since 1.5."""


class QueriesSummary(Record):
    """What attention can be replayed from."""

    num_queries: int
    num_requests: int
    num_layers: int
    num_context_rows: int
    """Tokens whose K and V are kept for attention alone, off the sampling grid."""
    has_outputs: bool
    """The engine's own attention output was captured with each query."""
    num_dropped: int
    """Rows of both kinds lost on purpose or by a fault, summed over ranks."""
    dropped_by_reason: dict[str, int]
    not_replayable: dict[int, tuple[str, ...]]
    """Layer → what shapes its attention and is not recorded."""


class TraceSummary(Record):
    """The JSON of `kvtrace inspect --format json`."""

    schema_version: str = INSPECT_SCHEMA_VERSION
    path: str
    trace_id: str
    created_at: float
    digest: str
    model: ModelRecord
    engine: EngineRecord
    platform: str | None
    """As recorded, or as the device and the backends tell it; null where they do not. Since 1.1."""
    privacy: PrivacyRecord
    has_fp8_cache: bool
    """Static FP8, and no layer is quantized in another way."""
    cache_kind: CacheKind
    """Of the captured layers taken together. Since 1.1."""
    layers: tuple[LayerSummary, ...]
    sampling: tuple[SamplingRecord, ...]
    num_tokens: int
    num_requests: int
    num_sampled_requests: int
    requests_by_status: dict[str, int]
    coverage: tuple[CoverageCell, ...]
    completeness: Completeness
    num_ranks: int
    num_chunks: int
    closed: bool
    """Every rank was shut down in order."""
    running: bool = False
    """The engine still ran when this was read, and may add rows. Since 1.4."""
    committed_at: float | None = None
    """Unix time of the last commit, by its file's own time. Since 1.4."""
    writer_failures: tuple[str, ...] = ()
    """Why writers stopped storing, one text for each rank that did."""
    num_lost_lines: int = 0
    """Records of requests that could not be written."""
    repair: RepairRecord | None = None
    """What a repair lost, where this is a repaired trace."""
    cost: dict[str, float]
    """Summed over ranks: hook_s, copy_s (part of it), write_s in seconds, raw_bytes, stored_bytes."""
    reread: bool
    """True after --verify: every tensor was read and checked; else presence and checksums were."""
    queries: QueriesSummary | None = None
    """None where no queries were captured. Since 1.3."""
    drafts: DraftsSummary | None = None
    """None where nothing is known of speculative decoding. Since 1.5."""
    profiles: dict[str, str] = Field(default_factory=dict)
    """After --verify, the profiles whose counts were made again and are the same: `made here` with the user's
    key, or `made elsewhere`. Since 1.2."""


def summarize(trace: Trace, *, verify: bool = False) -> TraceSummary:
    """Check the trace's files and count what it holds.

    verify: reread every tensor; without it each chunk's presence and closing checksum are compared with the
    commit record. Raises IntegrityError naming the file.
    """
    stores = (*trace.ranks, *trace.attention.all)
    for store in stores:
        store.verify() if verify else store.check()
    lines = read_lines_commit(trace.path / REQUESTS_FILE, committed=trace.record.line_commits)
    cost: Counter[str] = Counter()
    for store in stores:
        cost.update(store.commit.cost)
    return TraceSummary(
        path=str(trace.path),
        trace_id=trace.record.trace_id,
        created_at=trace.record.created_at,
        digest=trace.digest,
        model=trace.record.model,
        engine=trace.record.engine,
        platform=trace.platform,
        privacy=trace.record.privacy,
        has_fp8_cache=trace.cache_kind == "static_fp8",
        cache_kind=trace.cache_kind,
        layers=tuple(
            LayerSummary(
                layer=layer.index,
                kv_heads=layer.kv_heads,
                head_dim=layer.head_dim_k,
                backend=layer.backend,
                kv_cache_dtype=layer.kv_cache_dtype,
                has_fp8_cache=layer.cache_kind == "static_fp8",
                cache_kind=layer.cache_kind,
                k_scale=layer.k_scale,
                v_scale=layer.v_scale,
            )
            for layer in trace.layers.values()
        ),
        sampling=tuple(trace.sampling[key] for key in sorted(trace.sampling)),
        num_tokens=len(trace.tokens),
        num_requests=len(trace.requests),
        num_sampled_requests=sum(r.sampled for r in trace.requests.values()),
        requests_by_status=dict(Counter(r.status for r in trace.requests.values())),
        coverage=_coverage(trace),
        completeness=_completeness(trace),
        num_ranks=len(trace.ranks),
        num_chunks=sum(store.num_chunks for store in trace.ranks),
        closed=all(store.commit.closed for store in stores),
        running=trace.is_running,
        committed_at=last_commit_at(store.path for store in trace.ranks),
        writer_failures=tuple(store.commit.failure for store in stores if store.commit.failure),
        num_lost_lines=lines.num_lost if lines else 0,
        repair=trace.repair,
        cost=dict(cost),
        reread=verify,
        queries=_queries(trace) if trace.attention else None,
        drafts=summarize_drafts(trace),
    )


def _queries(trace: Trace) -> QueriesSummary:
    asked = trace.join(trace.attention.queries).tokens
    context = trace.join(trace.attention.context).tokens
    layers = [layer for store in trace.attention.queries for layer in store.rank.layers if layer.captured]
    by_reason: Counter[str] = Counter()
    for store in trace.attention.all:
        for reasons in store.dropped.values():
            by_reason.update(reasons)
    return QueriesSummary(
        num_queries=len(asked),
        num_requests=len(np.unique(asked.request)),
        num_layers=len({layer.index for layer in layers}),
        num_context_rows=len(context),
        has_outputs=trace.attention.queries[0].rank.has_outputs,
        num_dropped=by_reason.total(),
        dropped_by_reason=dict(by_reason),
        not_replayable={
            layer.index: layer.attention.not_replayable
            for layer in layers
            if layer.attention is not None and layer.attention.not_replayable
        },
    )


def _coverage(trace: Trace) -> tuple[CoverageCell, ...]:
    tokens = trace.tokens
    names = sorted({request.workload for request in trace.requests.values()})
    code_of_name = {name: code for code, name in enumerate(names)}
    numbers = np.array(sorted(trace.requests), dtype=np.int64)
    code_of_request = np.array([code_of_name[trace.requests[n].workload] for n in numbers.tolist()])
    workload = code_of_request[np.searchsorted(numbers, tokens.request)]
    keys = np.stack([workload, tokens.phase, tokens.octave, tokens.request]).astype(np.int64)
    per_request, num_tokens = np.unique(keys, axis=1, return_counts=True)
    cells: dict[tuple[int, int, int], tuple[int, int]] = {}
    for (code, phase, octave, _), count in zip(per_request.T.tolist(), num_tokens.tolist(), strict=True):
        tokens_before, requests_before = cells.get((code, phase, octave), (0, 0))
        cells[code, phase, octave] = (tokens_before + count, requests_before + 1)
    return tuple(
        CoverageCell(
            workload=names[code],
            phase=PHASES[phase],
            position_octave=octave,
            num_tokens=count,
            num_requests=requests,
        )
        for (code, phase, octave), (count, requests) in sorted(cells.items())
    )


def _completeness(trace: Trace) -> Completeness:
    sampled = [request for request in trace.requests.values() if request.sampled]
    finished = [request for request in sampled if request.status != "running"]
    uncommitted = sum(rows_uncommitted(trace).values())
    numbers = np.array([request.request for request in finished], dtype=np.int64)
    by_reason: Counter[str] = Counter()
    for store in trace.ranks:
        for reasons in store.dropped.values():
            by_reason.update(reasons)
    return Completeness(
        num_expected=sum(
            expected_positions(request, trace.sampling[request.sampling_id].position_stride)
            for request in finished
        ),
        num_stored=int(np.isin(trace.tokens.request, numbers).sum()),
        num_dropped=by_reason.total(),
        num_missing_positions=sum(stop - start for r in sampled for start, stop in r.missing),
        num_switched_off_positions=sum(stop - start for r in sampled for start, stop in r.switched_off),
        num_requests_with_missing=sum(bool(request.missing) for request in sampled),
        num_unfinished_requests=len(sampled) - len(finished),
        dropped_by_reason=dict(by_reason),
        num_pending=uncommitted if trace.is_running else 0,
        num_uncommitted=0 if trace.is_running else uncommitted,
        num_superseded=trace.joined.num_superseded,
        num_unknown_request=trace.joined.num_unknown,
        num_beyond_end=trace.joined.num_beyond_end,
        num_rejected=trace.joined.num_rejected,
    )
