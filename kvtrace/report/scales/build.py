"""Build the scales report of one artifact: audited, and compared with a trace if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvtrace.findings.artifact.audit import audit, audit_context, unit_of
from kvtrace.findings.artifact.observed import Observed, observe
from kvtrace.findings.artifact.weights import compare_weights
from kvtrace.numerics.formats import E4M3FN
from kvtrace.report.scales.model import (
    ArtifactSummary,
    AuditedFinding,
    EngineSummary,
    ObservedTrace,
    ScaleRow,
    ScalesReport,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.scales.artifact import ScaleArtifact
    from kvtrace.trace.reader import Trace


def scales_report(
    artifact: ScaleArtifact,
    trace: Trace | None = None,
    *,
    engine: str | None = None,
    backend: str | None = None,
    tp: int | None = None,
    against: Path | None = None,
    calibrated_at_length: int | None = None,
    observed: Observed | None = None,
) -> ScalesReport:
    """Return the report on one artifact; without a trace, what can be known without one.

    engine: numerics (`vllm-cuda`, …), which also name the loader; None: the format's own loader, `vllm-cuda`
    numerics.
    backend, tp: of the loader; None with a trace whose cache was static FP8: the traced engine's.
    calibrated_at_length: for artifacts whose manifest does not say it.
    observed: the trace counted before, by `observe(trace, unit_of(artifact))`: for several artifacts on one
    trace.
    Raises ArtifactError: `against` holds no weights, or the artifact claims an impossible model.
    InvalidCandidateError: no such loader, heads do not split.
    IntegrityError: the trace is damaged.
    """
    if observed is None and trace is not None:
        observed = observe(trace, unit_of(artifact), engine=_numerics(engine))
    context = audit_context(
        artifact,
        trace,
        engine=engine,
        backend=backend,
        tp=tp,
        weights=compare_weights(artifact.path, against) if against else None,
        calibrated_at_length=calibrated_at_length,
        observed=observed,
    )
    resolved, manifest = context.resolved, context.manifest
    return ScalesReport(
        artifact=ArtifactSummary(
            path=str(artifact.path),
            format=artifact.format.name,
            granularity=artifact.granularity,
            sha256=artifact.sha256,
            num_layers_with_scales=len(artifact.layers),
            num_ranks=artifact.num_ranks,
            unmatched_names=tuple(u.name for u in artifact.unmatched),
            envelope=manifest.dataset.calibration.model_dump(mode="json") if manifest else None,
        ),
        engine=EngineSummary(
            engine=resolved.setup.loader.name,
            backend=resolved.setup.backend,
            tp=resolved.setup.tp,
            granularity=resolved.granularity,
            notes=tuple(note.text for note in resolved.notes),
        ),
        trace=_trace_summary(observed) if observed else None,
        findings=tuple(map(AuditedFinding.of, audit(context))),
        scales=tuple(_rows(context)),
    )


def _numerics(engine: str | None) -> str:
    from kvtrace.numerics import DEFAULT_ENGINE, ENGINES

    return engine if engine in ENGINES else DEFAULT_ENGINE


def _trace_summary(observed: Observed) -> ObservedTrace:
    trace = observed.trace
    return ObservedTrace(
        path=str(trace.path),
        digest=trace.digest,
        num_tokens=len(trace.tokens),
        max_position=int(trace.tokens.position.max()),
        has_fp8_cache=trace.cache_kind == "static_fp8",
        cache_kind=trace.cache_kind,
        cache_dtypes=trace.cache_dtypes,
        engine=observed.engine,
    )


def _rows(context: AuditContext) -> list[ScaleRow]:
    rows = []
    for layer in range(context.num_layers):
        for head in range(context.num_kv_heads):
            for tensor in ("k", "v"):
                rows.append(_row(context, layer, head, "k" if tensor == "k" else "v"))  # noqa: PERF401
    return rows


def _row(context: AuditContext, layer: int, head: int, tensor: Literal["k", "v"]) -> ScaleRow:
    group, layers_own = (layer, head, tensor), (layer, 0, tensor)
    unit = group if group in context.shipped or context.has_unit_per_head else layers_own
    stored, value = context.shipped.get(unit), context.shipped_value(unit)
    in_use = context.resolved.scales.get(group)
    observed: Observed | None = context.observed
    counted = observed.groups.get(group) if observed else None
    served = group if context.has_unit_per_head else layers_own
    return ScaleRow(
        layer=layer,
        kv_head=head,
        tensor=tensor,
        shipped_scale=value,
        shipped_origin=stored.origin if stored else None,
        engine_scale=in_use.value if in_use else None,
        engine_origin=in_use.origin if in_use else None,
        effective_scale=observed.effective(group) if observed else None,
        covered_amax=in_use.value * E4M3FN.max_value if in_use else None,
        observed_amax=counted.amax if counted else None,
        optimal_scale=observed.optimal.get(served) if observed else None,
    )
