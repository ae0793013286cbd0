"""How a cache format is applied to a trace: which layers it codes, by which rule, over which scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.candidates.applied import AppliedScales, scale_keys, static_scales
from kvtrace.errors import InvalidCandidateError
from kvtrace.formats import find_format, with_rotary_dim
from kvtrace.formats.coding import RowCoding
from kvtrace.numerics.vllm_platforms import fp8_format_on
from kvtrace.trace.cache_dtypes import cache_kind

if TYPE_CHECKING:
    from kvtrace.candidates.candidate import Candidate
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.formats import CacheFormat
    from kvtrace.trace.reader import Trace

_WHOLE_ROTARY = 1.0


def coded_by(
    candidate: Candidate,
    cache: CacheFormat,
    setup: ServingSetup,
    trace: Trace,
    scales: AppliedScales | None = None,
) -> AppliedScales:
    """Return a candidate whose cache has that format.

    setup: its skipped layers, and how static FP8 in it is written. scales: for what reads k_scale and
    v_scale; None: 1.0. Raises InvalidCandidateError: a head size that the format does not take.
    """
    cache = as_in_model(cache, trace)
    native = native_layers(cache, setup, trace)
    _require_head_sizes(cache, trace, native)
    keys = list(scale_keys(trace))
    values: dict[ScaleKey, float | None] = {}
    origins: dict[ScaleKey, str] = {}
    for key in keys:
        layer, _, tensor = key
        coding = cache.coding(tensor)
        values[key] = None
        if layer in native:
            origins[key] = "skipped"
        elif coding.is_native:
            origins[key] = "unquantized"
        elif coding.uses_scale:
            values[key] = 1.0 if scales is None else scales.values[key]
            origins[key] = "unit" if scales is None else scales.origins[key]
        else:
            origins[key] = cache.name
    # Checked as static scales are: float32, > 0, a finite range.
    checked = static_scales(candidate, trace, values, origins, setup=setup) if cache.uses_scales else None
    return AppliedScales(
        candidate,
        checked.values if checked else values,
        origins,
        checked.granularity if checked else "token_head",
        format_note(cache, trace, native, scales),
        hypothetical=not _ran_in(trace, cache),
        codings={
            (layer, tensor): coding
            for layer in trace.layers
            for tensor, coding in (("k", cache.k), ("v", cache.v))
            if layer not in native and isinstance(coding, RowCoding)
        },
    )


def as_in_model(cache: CacheFormat, trace: Trace) -> CacheFormat:
    """Return the format with what it needs of the model: how many values of a vector are rotary."""
    config = trace.record.model.hf_config
    parameters = config.get("rope_parameters") or {}
    factor = config.get("partial_rotary_factor")
    if factor is None and isinstance(parameters, dict):
        factor = parameters.get("partial_rotary_factor")
    if not isinstance(factor, int | float) or not 0 < factor < _WHOLE_ROTARY:
        return cache
    return with_rotary_dim(cache, int(trace.record.model.head_dim * factor))


def native_layers(cache: CacheFormat, setup: ServingSetup, trace: Trace) -> frozenset[int]:
    """Return the layers that stay in the model's dtype: the format's own and those skipped."""
    num_layers = trace.record.model.num_layers
    is_hybrid = bool(trace.cache_layers.stateful)
    return frozenset(cache.native_layers(num_layers, is_hybrid=is_hybrid, skip=setup.skip_layers))


def bytes_per_token(cache: CacheFormat, trace: Trace, native: frozenset[int]) -> int:
    """Return the bytes of one token in all captured layers and their captured heads."""
    plain = find_format("auto")
    return sum(
        (plain if layer.index in native else cache).bytes_per_token(
            layer.head_dim_k, len(layer.kv_heads), layer.head_dim_v
        )
        for layer in trace.layers.values()
    )


def format_note(
    cache: CacheFormat, trace: Trace, native: frozenset[int], scales: AppliedScales | None
) -> str:
    """Return what it costs, what stays native, which scales it takes, and what else an operator must know."""
    size, full = (bytes_per_token(one, trace, native) for one in (cache, find_format("auto")))
    parts = [f"{size:,} bytes a token in the captured layers, bf16 takes {full / size:.2f} ×"]
    if native:
        parts.append(f"layers {', '.join(map(str, sorted(native)))} stay native")
    if cache.uses_scales:
        parts.append("every scale 1.0" if scales is None else "it takes the artifact's k_scale and v_scale")
    else:
        parts.append("it takes no scale of a checkpoint")
    return "; ".join([*parts, *([cache.fact] if cache.fact else [])])


def _ran_in(trace: Trace, cache: CacheFormat) -> bool:
    """Return whether the captured engine's cache had the format, and wrote it as kvtrace computes it."""
    quantized = {dtype for dtype in trace.cache_dtypes if cache_kind(dtype) != "unquantized"}
    engine = trace.record.engine
    native = fp8_format_on(trace.platform, engine.device, engine.compute_capability)
    return quantized == {cache.name} and (cache.k.float_format or native) == native


def _require_head_sizes(cache: CacheFormat, trace: Trace, native: frozenset[int]) -> None:
    for layer in trace.layers.values():
        if layer.index not in native:
            reason = cache.why_not(layer.head_dim_k, layer.head_dim_v)
            if reason is not None:
                raise InvalidCandidateError(f"{cache.name}: {reason} (layer {layer.index})", "head-size")
