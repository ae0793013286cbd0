"""How a cache format is applied to a trace: which layers it codes, by which rule, over which scales."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.candidates.applied import AppliedScales, scale_keys, static_scales
from kvtrace.errors import InvalidCandidateError
from kvtrace.formats import LayeredFormat, find_format, vllm_flags, why_refused, with_rotary_dim
from kvtrace.formats.coding import RowCoding
from kvtrace.formats.static_fp8 import StaticFp8
from kvtrace.numerics import find_engine
from kvtrace.numerics import find_format as find_fp8
from kvtrace.numerics.vllm_platforms import fp8_format_on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.candidates.candidate import Candidate
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.formats import AnyFormat
    from kvtrace.scales.resolved import EffectiveScale
    from kvtrace.trace.merged_layers import MergedLayer
    from kvtrace.trace.reader import Trace

_WHOLE_ROTARY = 1.0


def coded_by(
    candidate: Candidate,
    cache: AnyFormat,
    setup: ServingSetup,
    trace: Trace,
    scales: Mapping[ScaleKey, EffectiveScale] | None = None,
) -> AppliedScales:
    """Return a candidate whose cache has that format, or those formats by layer.

    setup: its skipped layers, and how static FP8 in it is written. scales: for what reads k_scale and
    v_scale, 1.0 where there is none; None: 1.0 throughout.
    Raises InvalidCandidateError: a head size that the format does not take.
    """
    cache = as_in_model(cache, trace)
    native = native_layers(cache, setup, trace)
    _require_head_sizes(cache, trace, native)
    values: dict[ScaleKey, float | None] = {}
    origins: dict[ScaleKey, str] = {}
    for key in scale_keys(trace):
        layer, _, tensor = key
        coding = cache.in_layer(layer).coding(tensor)
        values[key] = None
        if layer in native:
            origins[key] = "skipped"
        elif coding.is_native:
            origins[key] = "unquantized"
        elif coding.uses_scale:
            found = scales.get(key) if scales is not None else None
            values[key] = found.value if found else 1.0
            origins[key] = found.origin if found else "unit"
        else:
            origins[key] = cache.in_layer(layer).name
    # Checked as static scales are: float32, > 0, a finite range.
    checked = static_scales(candidate, trace, values, origins, setup=setup) if cache.uses_scales else None
    coded = {
        (layer, tensor): cache.in_layer(layer).coding(tensor)
        for layer in trace.layers
        for tensor in ("k", "v")
        if layer not in native
    }
    return AppliedScales(
        candidate,
        checked.values if checked else values,
        origins,
        checked.granularity if checked else "token_head",
        format_note(cache, trace, setup, scales),
        hypothetical=not all(_ran(layer, cache, native, trace) for layer in trace.layers.values()),
        codings={place: one for place, one in coded.items() if isinstance(one, RowCoding)},
        setups={
            place: static_setup(one, setup) for place, one in coded.items() if isinstance(one, StaticFp8)
        },
    )


def as_in_model(cache: AnyFormat, trace: Trace) -> AnyFormat:
    """Return the format with what it needs of the model: how many values of a vector are rotary."""
    config = trace.record.model.hf_config
    parameters = config.get("rope_parameters") or {}
    factor = config.get("partial_rotary_factor")
    if factor is None and isinstance(parameters, dict):
        factor = parameters.get("partial_rotary_factor")
    if not isinstance(factor, int | float) or not 0 < factor < _WHOLE_ROTARY:
        return cache
    rotary_dim = int(trace.record.model.head_dim * factor)
    return cache.each(lambda form: with_rotary_dim(form, rotary_dim))


def static_setup(coding: StaticFp8, serving: ServingSetup) -> ServingSetup:
    """Return the setup that writes static FP8 of a kind: in the engine's own E4M3 where that is asked for."""
    asked = coding.fp8_format
    own = next(
        one
        for one in (serving.fp8_format, *find_engine(serving.engine).formats, asked)
        if find_fp8(one).vllm_dtype == find_fp8(asked).vllm_dtype
    )
    return replace(serving, format=own)


def native_layers(cache: AnyFormat, setup: ServingSetup, trace: Trace) -> frozenset[int]:
    """Return the layers that stay in the model's dtype: the format's own and those skipped."""
    num_layers = trace.record.model.num_layers
    is_hybrid = bool(trace.cache_layers.stateful)
    return frozenset(cache.native_layers(num_layers, is_hybrid=is_hybrid, skip=setup.skip_layers))


def bytes_per_token(cache: AnyFormat, trace: Trace, native: frozenset[int]) -> int:
    """Return the bytes of one token in all captured layers and their captured heads."""
    plain = find_format("auto")
    return sum(
        (plain if layer.index in native else cache.in_layer(layer.index)).bytes_per_token(
            layer.head_dim_k, len(layer.kv_heads), layer.head_dim_v
        )
        for layer in trace.layers.values()
    )


def format_note(
    cache: AnyFormat,
    trace: Trace,
    setup: ServingSetup,
    scales: Mapping[ScaleKey, EffectiveScale] | None,
) -> str:
    """Return what it costs, what stays native, which scales it takes, and what else an operator must know."""
    native = native_layers(cache, setup, trace)
    size, full = (bytes_per_token(one, trace, native) for one in (cache, find_format("auto")))
    parts = [f"{size:,} bytes a token in the captured layers, bf16 takes {full / size:.2f} ×"]
    if native:
        parts.append(f"layers {', '.join(map(str, sorted(native)))} stay native")
    if cache.uses_scales:
        parts.append("every scale 1.0" if scales is None else "it takes the artifact's k_scale and v_scale")
    else:
        parts.append("it takes no scale of a checkpoint")
    if isinstance(cache, LayeredFormat):
        layers, model = trace.cache_layers, trace.record.model
        flags = vllm_flags(
            cache,
            layers.own_cache(range(model.num_layers)),
            model.num_layers,
            is_hybrid=bool(layers.stateful),
        )
        parts += [f"vLLM serves it with {flags}"] if flags else []
    return "; ".join([*parts, *(fact.text for fact in cache.facts)])


def _ran(layer: MergedLayer, cache: AnyFormat, native: frozenset[int], trace: Trace) -> bool:
    """Return whether the captured layer's cache had the format, and was written as kvtrace computes it."""
    form = cache.in_layer(layer.index)
    if layer.index in native or layer.cache_kind == "unquantized":
        return layer.cache_kind == "unquantized" and (layer.index in native or form.is_native)
    if why_refused(layer.kv_cache_dtype) or find_format(layer.kv_cache_dtype).name != form.name:
        return False
    engine = trace.record.engine
    own = fp8_format_on(trace.platform, engine.device, engine.compute_capability)
    return (form.k.float_format or own) == own


def _require_head_sizes(cache: AnyFormat, trace: Trace, native: frozenset[int]) -> None:
    for layer in trace.layers.values():
        if layer.index not in native:
            form = cache.in_layer(layer.index)
            reason = form.why_not(layer.head_dim_k, layer.head_dim_v)
            if reason is not None:
                raise InvalidCandidateError(f"{form.name}: {reason} (layer {layer.index})", "head-size")
