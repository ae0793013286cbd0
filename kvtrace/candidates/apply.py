"""Bind a candidate to a trace: one scale per layer, KV head and tensor, or the reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.candidates.candidate import captured_setup
from kvtrace.errors import InputError, InvalidCandidateError
from kvtrace.numerics import find_pair
from kvtrace.numerics.backends import REFUSING_PER_HEAD, why_not
from kvtrace.numerics.online import SCALE_BYTES
from kvtrace.numerics.vllm_platforms import fp8_format_on
from kvtrace.scales import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.candidates.candidate import Candidate, EngineSetup, ScaleKey
    from kvtrace.numerics.online import OnlinePolicy
    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import MergedLayer, Trace


@dataclass(frozen=True, slots=True)
class AppliedScale:
    """The multiplier of one layer, KV head and tensor."""

    value: float | None
    """float32 value; None: not quantized."""
    origin: str
    """File and key, `effective`, `unit`, `given`, `skipped`, `unquantized` or the online policy."""


@dataclass(frozen=True, slots=True)
class AppliedScales:
    """A candidate's scales for one trace, checked: each value is a float32 > 0 with a finite range."""

    scales: Mapping[ScaleKey, AppliedScale]
    granularity: str | None
    """tensor, attn_head or token_head as applied; None: nothing is quantized."""
    note: str | None
    hypothetical: bool
    """Whether the captured engine used other scales, or wrote its cache in another way."""

    def of_heads(self, layer: int, tensor: str, kv_heads: Sequence[int]) -> list[float] | None:
        """Return the multipliers of these heads; None where the tensor is not quantized."""
        scales = self.scales
        values = [scales[layer, head, tensor].value for head in kv_heads]
        return None if None in values else values  # type: ignore[return-value]


def apply_candidate(candidate: Candidate, trace: Trace) -> AppliedScales | None:
    """Return the candidate's scales for the trace's layers; None: it has none here.

    That is so of `effective` where the cache was not static FP8.
    Raises InvalidCandidateError: a scale is 0, negative, NaN, inf or too large, belongs to another model, or
    the engine cannot apply it.
    """
    if candidate.kind == "effective" and trace.cache_kind != "static_fp8":
        return None
    if candidate.policy is not None:
        return _online(candidate.policy, trace)
    if candidate.setup is None:
        return _unquantized(trace)
    _check_setup(candidate.setup)
    note = granularity = None
    if candidate.kind == "effective":
        scales = _effective_scales(trace)
    elif candidate.kind == "unit":
        scales = {key: AppliedScale(1.0, "unit") for key in _keys(trace)}
    elif candidate.artifact is not None:
        scales, granularity, note = _artifact_scales(candidate.artifact, candidate.setup, trace)
    else:
        scales = _given_scales(candidate.scales or {}, trace)
    scales = {
        key: _checked(key, scale, candidate.setup)
        if key[0] not in candidate.setup.skip_layers
        else AppliedScale(None, "skipped")
        for key, scale in scales.items()
    }
    is_what_ran = (
        trace.cache_kind == "static_fp8"
        and _values(scales) == _values(_effective_scales(trace))
        and _wrote(candidate.setup, trace)
    )
    return AppliedScales(scales, granularity or _granularity(scales), note, hypothetical=not is_what_ran)


def _wrote(setup: EngineSetup, trace: Trace) -> bool:
    """Return whether the captured engine wrote its FP8 cache by these numerics, in this format."""
    try:
        captured = captured_setup(trace)
    except InputError:  # kvtrace has no numerics for it
        return False
    return (setup.engine, setup.fp8_format) == (captured.engine, captured.fp8_format)


def _check_setup(setup: EngineSetup) -> None:
    try:
        find_pair(setup.engine, setup.fp8_format)
        reason = why_not(setup.engine, setup.backend)
    except InputError as error:
        raise InvalidCandidateError(str(error)) from error
    if reason is not None:
        raise InvalidCandidateError(reason)


def _keys(trace: Trace) -> Iterator[ScaleKey]:
    for layer in trace.layers.values():
        for head in layer.kv_heads:
            for tensor in ("k", "v"):
                yield layer.index, head, tensor


def _unquantized(trace: Trace) -> AppliedScales:
    scales = {key: AppliedScale(None, "unquantized") for key in _keys(trace)}
    return AppliedScales(scales, None, None, hypothetical=trace.cache_kind != "unquantized")


def _online(policy: OnlinePolicy, trace: Trace) -> AppliedScales:
    scales = {key: AppliedScale(None, policy.name) for key in _keys(trace)}
    dims = {d for layer in trace.layers.values() for d in (layer.head_dim_k, layer.head_dim_v)}
    extra = " to ".join(
        f"{100 * SCALE_BYTES / dim:.1f} %" for dim in sorted({max(dims), min(dims)}, reverse=True)
    )
    note = (
        f"its scales take {SCALE_BYTES} bytes per token, head and tensor: {extra} more than the codes alone"
    )
    return AppliedScales(scales, "token_head", note, hypothetical=not _ran_online(policy, trace))


def _ran_online(policy: OnlinePolicy, trace: Trace) -> bool:
    """Return whether every captured layer's cache was the policy's, in the policy's format."""
    engine = trace.record.engine
    native = fp8_format_on(trace.platform, engine.device, engine.compute_capability)
    return trace.cache_dtypes == (policy.vllm_dtype,) and policy.format in (native, "int8")


def _effective_scales(trace: Trace) -> dict[ScaleKey, AppliedScale]:
    def of(
        layer: MergedLayer, values: tuple[float, ...], tensor: str
    ) -> Iterator[tuple[ScaleKey, AppliedScale]]:
        for head, value in zip(layer.kv_heads, values, strict=True):
            quantized = AppliedScale(_float32(value), "effective")
            yield (
                (layer.index, head, tensor),
                quantized if layer.cache_kind == "static_fp8" else AppliedScale(None, "skipped"),
            )

    scales: dict[ScaleKey, AppliedScale] = {}
    for layer in trace.layers.values():
        scales.update(of(layer, layer.k_scale, "k"))
        scales.update(of(layer, layer.v_scale, "v"))
    return scales


def _artifact_scales(
    artifact: ScaleArtifact, setup: EngineSetup, trace: Trace
) -> tuple[dict[ScaleKey, AppliedScale], str, str | None]:
    model = trace.record.model
    # The model's head count, corrected where a captured layer has another one.
    heads = dict.fromkeys(range(model.num_layers), model.num_kv_heads)
    heads |= {index: max(layer.kv_heads) + 1 for index, layer in trace.layers.items()}
    resolved = resolve(
        artifact,
        num_layers=model.num_layers,
        kv_heads_per_layer=heads,
        engine=setup.engine,
        backend=setup.backend,
        tp=setup.tp,
        kv_cache_dtype="fp8_e5m2" if setup.fp8_format == "e5m2" else "fp8_e4m3",
        fnuz=setup.fp8_format == "e4m3fnuz",
    )
    resolved.require_valid()
    if resolved.notes_of("collapsed") and setup.engine in REFUSING_PER_HEAD:
        raise InvalidCandidateError(
            f"backend {setup.backend} takes no scale per head, and {artifact.name} has them: vLLM refuses to "
            "start with both on a GPU; give another --backend, or scales per tensor"
        )
    scales = {}
    for key in _keys(trace):
        found = resolved.scale(*key)
        scales[key] = AppliedScale(_float32(found.value), found.origin)
    return scales, resolved.granularity, resolved.note


def _given_scales(given: Mapping[ScaleKey, float], trace: Trace) -> dict[ScaleKey, AppliedScale]:
    missing = [key for key in _keys(trace) if key not in given]
    if missing:
        layer, head, tensor = missing[0]
        raise InvalidCandidateError(
            f"no {tensor} scale for layer {layer}, KV head {head}, which {trace.path} has; "
            "were the scales made for another model?"
        )
    return {key: AppliedScale(_float32(given[key]), "given") for key in _keys(trace)}


def _checked(key: ScaleKey, scale: AppliedScale, setup: EngineSetup) -> AppliedScale:
    if scale.value is None:
        return scale
    _, fmt = find_pair(setup.engine, setup.fp8_format)
    largest = float(np.finfo(np.float32).max) / fmt.max_value
    if not 0 < scale.value <= largest:  # false for NaN too
        layer, head, tensor = key
        raise InvalidCandidateError(
            f"the {tensor} scale of layer {layer}, KV head {head} is {scale.value:g} ({scale.origin}); "
            f"expected a number > 0 and at most {largest:.2g}, so that {fmt.max_value:g} × scale is a float32"
        )
    return scale


def _granularity(scales: Mapping[ScaleKey, AppliedScale]) -> str | None:
    """Tell the granularity from the values: attn_head where the heads of any layer and tensor differ."""
    per_tensor: dict[tuple[int, str], set[float]] = {}
    for (layer, _, tensor), scale in scales.items():
        if scale.value is not None:
            per_tensor.setdefault((layer, tensor), set()).add(scale.value)
    if not per_tensor:
        return None
    return "attn_head" if any(len(values) > 1 for values in per_tensor.values()) else "tensor"


def _values(scales: Mapping[ScaleKey, AppliedScale]) -> dict[ScaleKey, float | None]:
    return {key: scale.value for key, scale in scales.items()}


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
