"""What the captured engine did: its scales, and the setup that it wrote its cache with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtrace.candidates.setup import DEFAULT_SETUP, ServingSetup
from kvtrace.errors import InputError
from kvtrace.numerics import ENGINES, find_engine
from kvtrace.numerics.vllm_platforms import fp8_format_on, numerics_on
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.trace.merged_layers import MergedLayer
    from kvtrace.trace.reader import Trace

ScaleKey = tuple[int, int, str]
"""(layer, global kv_head, "k" | "v")."""


def default_setup(traces: Sequence[Trace]) -> ServingSetup:
    """Return the captured engine's numerics if its cache was static FP8, else those of vLLM on CUDA."""
    with_fp8 = [trace for trace in traces if trace.cache_kind == "static_fp8"]
    return captured_setup(with_fp8[0]) if with_fp8 else DEFAULT_SETUP


def captured_setup(trace: Trace) -> ServingSetup:
    """Return the numerics and the format in which the engine wrote the trace's static FP8 layers.

    Raises InputError: there is no such layer, one was written in a way that kvtrace cannot replay, or two in
    different ways.
    """
    found: dict[ServingSetup, list[str]] = {}
    for layer in trace.layers.values():
        if layer.cache_kind != "unquantized":
            setup = _setup_of(layer, trace)
            found.setdefault(setup, []).append(f"layer {layer.index} on {plain(layer.backend, 30)}")
    if len(found) != 1:
        ways = "; ".join(f"{one.engine} in {one.format}: {layers[0]}" for one, layers in found.items())
        raise InputError(
            f"{trace.path}: its layers were written in {len(found)} ways ({ways or 'none is FP8'}), and a "
            "replay has one; choose it with --engine and --fp8-format"
        )
    return next(iter(found))


def format_on(engine: str, traces: Sequence[Trace]) -> str | None:
    """Return the FP8 format that numerics give to what the traces' engines asked for; None: their default."""
    numerics = find_engine(engine)
    asked = {
        layer.kv_cache_dtype
        for trace in traces
        for layer in trace.layers.values()
        if layer.cache_kind == "static_fp8"
    }
    writes_it = "e5m2" in numerics.formats and not numerics.writes_native_format
    return "e5m2" if asked == {"fp8_e5m2"} and writes_it else None


def effective_values(trace: Trace) -> dict[ScaleKey, float | None]:
    """Return the scales that the engine used, in float32; None in layers that it kept unquantized."""
    values: dict[ScaleKey, float | None] = {}
    for layer in trace.layers.values():
        for tensor, scales in (("k", layer.k_scale), ("v", layer.v_scale)):
            for head, value in zip(layer.kv_heads, scales, strict=True):
                values[layer.index, head, tensor] = (
                    float(np.float32(value)) if layer.cache_kind == "static_fp8" else None
                )
    return values


def is_written_by(setup: ServingSetup, trace: Trace) -> bool:
    """Return whether the captured engine wrote its FP8 cache by these numerics, in this format."""
    try:
        captured = captured_setup(trace)
    except InputError:  # kvtrace has no numerics for it
        return False
    return (setup.engine, setup.fp8_format) == (captured.engine, captured.fp8_format)


def _setup_of(layer: MergedLayer, trace: Trace) -> ServingSetup:
    engine, platform = trace.record.engine, trace.platform
    where = f"{trace.path}: its engine ran on {plain(engine.device, 60)!r}"
    if platform is None:
        raise InputError(
            f"{where}, which tells no platform that kvtrace knows (cuda, rocm, cpu); choose the numerics to "
            f"replay with --engine: {', '.join(ENGINES)}"
        )
    numerics = numerics_on(platform, layer.backend)
    if numerics is not None and layer.cache_kind == "static_fp8":
        is_e5m2 = layer.kv_cache_dtype == "fp8_e5m2" and not find_engine(numerics).writes_native_format
        native = fp8_format_on(platform, engine.device, engine.compute_capability)
        if not is_e5m2 and native is None:
            raise InputError(
                f"{where}, which does not tell whether its FP8 is e4m3fnuz (AMD's gfx94x) or e4m3fn; choose "
                f"with --engine {numerics} --fp8-format"
            )
        setup = ServingSetup(numerics, "e5m2" if is_e5m2 else native)
        if setup.format in find_engine(numerics).formats:
            return setup
    raise InputError(
        f"{where} ({plain(platform, 20)}) with cache dtype {plain(layer.kv_cache_dtype, 30)} on backend "
        f"{plain(layer.backend, 30)}, for which kvtrace has no numerics; choose the ones to replay with "
        f"--engine: {', '.join(ENGINES)}"
    )
