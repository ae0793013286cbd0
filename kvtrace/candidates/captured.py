"""What the captured engine did: its scales, and the setup that it wrote its cache with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtrace.candidates.setup import DEFAULT_SETUP, ServingSetup
from kvtrace.errors import InputError
from kvtrace.numerics.backends import find_backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.trace.reader import Trace

ScaleKey = tuple[int, int, str]
"""(layer, global kv_head, "k" | "v")."""


def default_setup(traces: Sequence[Trace]) -> ServingSetup:
    """Return the captured engine's numerics if its cache was FP8, else those of vLLM on CUDA."""
    with_fp8 = [trace for trace in traces if trace.has_fp8_cache]
    return captured_setup(with_fp8[0]) if with_fp8 else DEFAULT_SETUP


def captured_setup(trace: Trace) -> ServingSetup:
    """Return the numerics of the engine that wrote the trace.

    Raises InputError: its cache dtype or device is one that kvtrace cannot replay.
    """
    dtypes = {layer.kv_cache_dtype for layer in trace.layers.values() if layer.has_fp8_cache}
    dtype, device = min(dtypes, default="fp8"), trace.record.engine.device.split(":")[0]
    engines = {"cpu": "vllm-cpu", "cuda": "vllm-cuda", "rocm": "vllm-rocm", "hip": "vllm-rocm"}
    formats = {"fp8": "e4m3fn", "fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2"}
    if device not in engines or dtype not in formats or len(dtypes) > 1:
        raise InputError(
            f"{trace.path}: its engine ran on {device} with cache dtype {', '.join(sorted(dtypes))}, "
            "for which kvtrace has no numerics; choose the ones to replay with --engine"
        )
    return ServingSetup(engines[device], formats[dtype])


def effective_values(trace: Trace) -> dict[ScaleKey, float | None]:
    """Return the scales that the engine used, in float32; None in layers that it kept unquantized."""
    values: dict[ScaleKey, float | None] = {}
    for layer in trace.layers.values():
        for tensor, scales in (("k", layer.k_scale), ("v", layer.v_scale)):
            for head, value in zip(layer.kv_heads, scales, strict=True):
                values[layer.index, head, tensor] = float(np.float32(value)) if layer.has_fp8_cache else None
    return values


def is_written_by(setup: ServingSetup, trace: Trace) -> bool:
    """Return whether the captured engine wrote its FP8 cache by these numerics, in this format."""
    try:
        captured = captured_setup(trace)
    except InputError:  # kvtrace has no numerics for it
        return False
    if setup.fp8_format != captured.fp8_format:
        return False
    backends = {layer.backend for layer in trace.layers.values() if layer.has_fp8_cache}
    return setup.engine == captured.engine or all(
        setup.engine in _engines_of(backend, trace.record.engine.name) for backend in backends
    )


def _engines_of(backend: str, product: str) -> tuple[str, ...]:
    """Return the numerics that can be a backend's cache write in this product; none where it is unknown."""
    try:
        engines = find_backend(backend).engines
    except InputError:
        return ()
    # SGLang and vLLM share the names of some backends, not their cache write.
    return tuple(one for one in engines if product != "vllm" or one.startswith("vllm-"))
