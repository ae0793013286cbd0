"""The audit: every rule asked of one artifact, held against what is known of its model and traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.calibration.manifest import parse_manifest
from kvtrace.errors import ArtifactError
from kvtrace.findings.artifact.context import AuditContext
from kvtrace.findings.artifact.rules import RULES
from kvtrace.findings.finding import SEVERITIES
from kvtrace.findings.rule import findings_of
from kvtrace.scales.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.calibration.manifest import Manifest
    from kvtrace.findings.artifact.example import ArtifactRule
    from kvtrace.findings.artifact.observed import Observed
    from kvtrace.findings.artifact.weights import WeightsComparison
    from kvtrace.findings.finding import Finding
    from kvtrace.scales.artifact import Granularity, ScaleArtifact
    from kvtrace.trace.cache_layers import CacheLayers
    from kvtrace.trace.reader import Trace

_MAX_GROUPS: Final = 16_384
"""Layers × KV heads; the largest models have some 10,000. A hostile config.json must not take the memory."""


def audit(context: AuditContext, rules: Iterable[ArtifactRule] = RULES) -> list[Finding]:
    """Return the rules' findings, errors first, in the rules' order."""
    return sorted(findings_of(rules, context), key=lambda finding: SEVERITIES.index(finding.severity))


def audit_context(
    artifact: ScaleArtifact,
    trace: Trace | None = None,
    *,
    engine: str | None = None,
    backend: str | None = None,
    tp: int | None = None,
    weights: WeightsComparison | None = None,
    calibrated_at_length: int | None = None,
    observed: Observed | None = None,
    skip_layers: Iterable[int] = (),
    cache_dtype: str = "fp8",
) -> AuditContext:
    """Return what the rules look at; nothing is counted here.

    trace: gives the model's shape, and the setup where its cache was FP8 and `backend` or `tp` is None.
    engine: names the loader; None: the format's own. weights: what `compare_weights` found.
    calibrated_at_length: for artifacts whose manifest does not say it.
    skip_layers: those left unquantized; an engine with an FP8 cache that left some shows them itself.
    cache_dtype: of the cache that they are judged for, vLLM's name: fp8 or one of nvfp4.
    observed: the trace counted; None with a trace: rules that need its values say nothing.
    Raises ArtifactError: it claims an impossible model. InvalidCandidateError: no such engine, heads do not
    split.
    """
    manifest = parse_manifest(artifact.manifest)
    length = _calibrated_length(manifest) if manifest else calibrated_at_length
    cache = artifact.model.cache.joined(trace.cache_layers) if trace else artifact.model.cache
    num_layers, num_kv_heads = _shape(artifact, trace)
    sizes_are_known = trace is not None or artifact.model.num_layers is not None
    if cache.is_latent:
        num_kv_heads, cache = 1, replace(cache, kv_heads=1, kv_heads_of={})
    if trace is not None and trace.cache_kind == "static_fp8":
        backend = backend or next(iter(trace.layers.values())).backend
        tp = tp or trace.record.engine.tensor_parallel_size
    resolved = resolve(
        artifact,
        num_layers=num_layers,
        kv_heads_per_layer={n: _heads(artifact, trace, cache, n, num_kv_heads) for n in range(num_layers)},
        loader=engine,
        backend=backend,
        tp=tp,
        kv_cache_dtype=cache_dtype,
        cache=cache,
        sizes_are_known=sizes_are_known,
    )
    return AuditContext(
        artifact=artifact,
        resolved=resolved,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        cache=cache,
        sizes_are_known=sizes_are_known,
        observed=observed,
        manifest=manifest,
        calibrated_length=length,
        weights=weights,
        unquantized=frozenset(skip_layers) | _left_out_by(trace),
    )


def _heads(
    artifact: ScaleArtifact, trace: Trace | None, cache: CacheLayers, layer: int, num_kv_heads: int
) -> int:
    """Return a layer's KV heads; where nothing says how many there are, as many as its scales have."""
    if trace is None and cache.kv_heads is None and layer not in cache.kv_heads_of:
        stored = (len(s.values) for s in artifact.scales if s.layer == layer and s.tensor in ("k", "v"))
        return max(max(stored, default=1), artifact.num_ranks or 1)
    return min(cache.heads(layer, num_kv_heads), num_kv_heads)


def _calibrated_length(manifest: Manifest) -> int:
    """Return the length of what was calibrated on: the requests', not the last position that was sampled."""
    rows = manifest.dataset.calibration
    return rows.max_computed_tokens or rows.max_position + 1


def _left_out_by(trace: Trace | None) -> frozenset[int]:
    """Return the layers that an engine with an FP8 cache left in the model's own dtype."""
    if trace is None or trace.cache_kind != "static_fp8":
        return frozenset()
    return frozenset(n for n, layer in trace.layers.items() if layer.cache_kind == "unquantized")


def unit_of(artifact: ScaleArtifact) -> Granularity:
    """Return what one of the artifact's scales serves: heads of one rank have a scale of their own too."""
    return "attn_head" if (artifact.num_ranks or 1) > 1 else artifact.granularity


def _shape(artifact: ScaleArtifact, trace: Trace | None) -> tuple[int, int]:
    """Return layers and KV heads of the model: the trace's, else the configuration's, else what the scales
    show.
    """
    if trace is not None:
        return trace.record.model.num_layers, trace.record.model.num_kv_heads
    per_head = max((len(s.values) for s in artifact.scales if s.tensor in ("k", "v")), default=1)
    layers = artifact.model.num_layers or max(artifact.layers, default=-1) + 1
    heads = artifact.model.num_kv_heads or max(per_head, artifact.num_ranks or 1)
    if layers * heads > _MAX_GROUPS:
        raise ArtifactError(
            f"{artifact.path}: says that its model has {layers:,} layers of {heads:,} KV heads; no model "
            "has that "
            "many: is its config.json sound?"
        )
    return layers, heads
