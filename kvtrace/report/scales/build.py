"""Build the scales report of one artifact: audited, and compared with a trace if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvtrace.findings.artifact.audit import audit, audit_context, unit_of
from kvtrace.findings.artifact.nvfp4_observed import COVERED as COVERED_BY_NVFP4
from kvtrace.findings.artifact.observed import Observed, observe
from kvtrace.findings.artifact.weights import compare_weights
from kvtrace.report.scales.model import (
    ArtifactSummary,
    AuditedFinding,
    EngineSummary,
    LayerSummary,
    ModuleSummary,
    ObservedTrace,
    QueryScaleRow,
    ScaleRow,
    ScalesReport,
)
from kvtrace.scales.loaders.other_format import is_nvfp4
from kvtrace.scales.number_format import COVERED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.scales.artifact import ModuleScales, ScaleArtifact
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
    cache_dtype: str = "fp8",
) -> ScalesReport:
    """Return the report on one artifact; without a trace, what can be known without one.

    engine: numerics (`vllm-cuda`, …), which also name the loader; None: the format's own loader, `vllm-cuda`
    numerics.
    backend, tp: of the loader; None with a trace whose cache was static FP8: the traced engine's.
    calibrated_at_length: for artifacts whose manifest does not say it.
    cache_dtype: of the cache that they are judged for: fp8, nvfp4 or nvfp4_4over6.
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
        cache_dtype=cache_dtype,
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
            number_format=artifact.number_format,
            envelope=manifest.dataset.calibration.model_dump(mode="json") if manifest else None,
        ),
        engine=EngineSummary(
            engine=resolved.setup.loader.name,
            backend=resolved.setup.backend,
            tp=resolved.setup.tp,
            granularity=resolved.granularity,
            notes=tuple(note.text for note in resolved.notes),
            remarks=tuple(note.text for note in resolved.notes_of("information")),
        ),
        trace=_trace_summary(observed) if observed else None,
        findings=tuple(map(AuditedFinding.of, audit(context))),
        scales=tuple(_rows(context)),
        q_scales=tuple(_q_rows(context)),
        layers=tuple(_layers(context)),
        other_modules=tuple(map(_module, artifact.other_modules)),
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
    observed = context.observed.trace.layers if context.observed else {}
    rows = []
    for layer in sorted({*context.layers, *observed}):
        for head in range(context.heads(layer)):
            for tensor in context.cache.tensors:
                rows.append(_row(context, layer, head, "k" if tensor == "k" else "v"))  # noqa: PERF401
    return rows


def _q_rows(context: AuditContext) -> Iterator[QueryScaleRow]:
    for stored in sorted((s for s in context.artifact.scales if s.tensor == "q"), key=lambda s: s.layer):
        heads = range(context.heads(stored.layer))
        in_use = [context.resolved.scales.get((stored.layer, head, "q")) for head in heads]
        known = [scale for scale in in_use if scale is not None]
        used = max(known, key=lambda scale: scale.value, default=None)
        yield QueryScaleRow(
            layer=stored.layer,
            shipped_scale=max(stored.values),
            shipped_origin=stored.origin,
            engine_scale=used.value if used else None,
            engine_origin=used.origin if used else None,
        )


def _layers(context: AuditContext) -> Iterator[LayerSummary]:
    for layer in range(context.num_layers if context.sizes_are_known else 0):
        number_format = context.artifact.format_of(layer)
        if layer in context.cache.stateful:
            yield LayerSummary(layer=layer, keeps="state")
        elif layer in context.cache.shared:
            at = context.cache.shared[layer]
            yield LayerSummary(layer=layer, keeps="shared cache", reads_cache_of=at)
        elif number_format == "none" or layer in context.cache.unquantized:
            yield LayerSummary(layer=layer, keeps="unquantized cache")
        elif number_format != "fp8":
            yield LayerSummary(layer=layer, keeps="other format", number_format=number_format)


def _module(module: ModuleScales) -> ModuleSummary:
    assert module.kind != "language", "those are the artifact's own"
    values = [value for scale in module.scales for value in scale.values]
    return ModuleSummary(
        kind=module.kind,
        prefix=module.prefix,
        num_scales=len(module.scales),
        min_scale=min(values),
        max_scale=max(values),
    )


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
        covered_amax=_covered(context, layer, in_use.value if in_use else value),
        observed_amax=counted.amax if counted else None,
        optimal_scale=observed.optimal.get(served) if observed else None,
    )


def _covered(context: AuditContext, layer: int, scale: float | None) -> float | None:
    """Return the largest magnitude that a scale covers in the layer's own number format."""
    of_nvfp4 = is_nvfp4(context.resolved.setup.kv_cache_dtype)
    per_scale = COVERED_BY_NVFP4 if of_nvfp4 else COVERED.get(context.artifact.format_of(layer))
    return None if scale is None or per_scale is None else scale * per_scale
