"""Checkpoints and the traces that their engines gave: what report and calibrate say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from support.checkpoints import checkpoint
from support.fabricate import fabricate_trace, request

from checkpoint_cases.case import Answer, Case, reported
from checkpoint_cases.checkpoints import COMPRESSED, MODELOPT
from kvtrace.calibration.calibrate import calibrate
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.errors import KVTraceError
from kvtrace.report.scales.build import scales_report
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Tensors = dict[tuple[int, str], "NDArray[Any]"]
REQUESTS, POSITIONS = 8, 16
AMAX = {"k": 8.0, "v": 3.0}


def _values(layers: Mapping[int, int], head_dim: int = 32) -> Tensors:
    """Return K and V of each layer with its KV heads; every head's largest magnitude is that of `AMAX`."""
    random = np.random.default_rng(0)
    found: Tensors = {}
    for layer, heads in layers.items():
        for tensor, amax in AMAX.items():
            x = random.standard_normal((REQUESTS * POSITIONS, heads, head_dim)).astype(np.float32)
            found[layer, tensor] = x / np.abs(x).max(axis=(0, 2), keepdims=True) * amax
    return found


def _trace(path: Path, tensors: Tensors, positions: Sequence[int] | None = None, **options: Any) -> Path:
    at = list(positions or range(POSITIONS))
    return fabricate_trace(
        path,
        tensors,
        device="NVIDIA H100 80GB HBM3",
        request_of_row=[number for number in range(REQUESTS) for _ in at],
        position_of_row=at * REQUESTS,
        requests=[request(number, prompt_tokens=max(at) + 1) for number in range(REQUESTS)],
        **options,
    )


def _scales(layers: Sequence[int]) -> dict[tuple[int, str], tuple[float, ...]]:
    return {
        (layer, tensor): (float(np.float32(amax / 448)),) for layer in layers for tensor, amax in AMAX.items()
    }


def _stored(prefix: str, layers: Sequence[int], *, projections: bool) -> dict[str, float]:
    return {
        f"{prefix}.{layer}.self_attn.{f'{tensor}_proj.' if projections else ''}{tensor}_scale": value
        for (layer, tensor), (value,) in _scales(layers).items()
    }


def _calibrated(trace: Path, granularity: str = "tensor") -> list[int] | str:
    """Return the layers that get scales, or the refusal's type."""
    try:
        found = calibrate([open_trace(trace)], Recipe(granularity=granularity), DatasetRules())  # type: ignore[arg-type]
    except KVTraceError as error:
        return type(error).__name__
    return sorted({layer for layer, _ in found.scales})


HYBRID = {
    "model_type": "qwen3_5_text",
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 12,
    "layer_types": [("full" if n % 4 == 3 else "linear") + "_attention" for n in range(12)],
}


def _hybrid(directory: Path, *, draft: bool = False) -> Answer:
    stateful = [f"model.layers.{n}.linear_attn" for n in range(12) if n % 4 != 3]
    trace = _trace(
        directory / "t.kvtrace",
        _values(dict.fromkeys((3, 7, 11), 2)),
        kv_cache_dtype="fp8_e4m3",
        backend="FLASHINFER",
        scales=_scales((3, 7, 11)),
        settings={"layers_without_kv": stateful},
        model={"num_layers": 12},
    )
    tensors = _stored("model.language_model.layers", (3, 7, 11), projections=True)
    model: dict[str, Any] = HYBRID | ({"mtp_num_hidden_layers": 1} if draft else {})
    if draft:
        tensors |= {f"mtp.layers.0.self_attn.{t}_proj.{t}_scale": 0.9 for t in "kv"}
    path = checkpoint(directory / "ckpt", tensors, model=model, quantization=MODELOPT | {"quant_algo": "FP8"})
    return reported(trace, [path]) | {
        "calibrated": _calibrated(trace),
        "per head": _calibrated(trace, "attn_head"),
    }


def _hybrid_with_draft(directory: Path) -> Answer:
    return _hybrid(directory, draft=True)


def _shared(directory: Path) -> Answer:
    sharing = {"num_hidden_layers": 10, "num_kv_shared_layers": 4, "model_type": "gemma4_text"}
    trace = _trace(
        directory / "t.kvtrace",
        _values(dict.fromkeys(range(6), 2)),
        kv_cache_dtype="fp8_e4m3",
        backend="TRITON_ATTN",
        scales=_scales(range(6)),
        model={"num_layers": 10, "hf_config": sharing},
    )
    model = sharing | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    tensors = _stored("model.language_model.layers", range(6), projections=False)
    path = checkpoint(directory / "ckpt", tensors, model=model, quantization=COMPRESSED)
    return reported(trace, [path]) | {"calibrated": _calibrated(trace)}


def _two_head_shapes(directory: Path) -> Answer:
    heads = {n: 1 if n % 3 == 2 else 4 for n in range(6)}
    trace = _trace(
        directory / "t.kvtrace",
        _values(heads, 16),
        kv_cache_dtype="fp8_e4m3",
        backend="TRITON_ATTN",
        scales=_scales(range(6)),
        model={"num_attention_heads": 8},
    )
    model = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_global_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": [("full" if n % 3 == 2 else "sliding") + "_attention" for n in range(6)],
    }
    tensors = _stored("model.language_model.layers", range(6), projections=False)
    path = checkpoint(directory / "ckpt", tensors, model=model, quantization=COMPRESSED)
    report = scales_report(load_artifact(path), open_trace(trace))
    return reported(trace, [path]) | {
        "calibrated": _calibrated(trace),
        "heads of layer 2": len({row.kv_head for row in report.scales if row.layer == 2}),
    }


def _left_in_bf16(directory: Path) -> Answer:
    trace = _trace(
        directory / "t.kvtrace",
        _values(dict.fromkeys(range(4), 2)),
        kv_cache_dtype="fp8_e4m3",
        cache_dtype_of={2: "auto"},
        backend="FLASHINFER",
        scales=_scales((0, 1, 3)),
    )
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "producer": MODELOPT["producer"],
        "kv_cache_quant_algo": "MIXED_PRECISION",
        "kv_cache_quantized_layers": {
            f"model.layers.{n}.self_attn": {"quant_algo": "FP8"} for n in (0, 1, 3)
        },
    }
    model = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 2}
    model |= {"num_key_value_heads": 2, "head_dim": 32}
    tensors = _stored("model.layers", (0, 1, 3), projections=True)
    path = checkpoint(directory / "ckpt", tensors, model=model, quantization=quantization)
    return reported(trace, [path])


def _e5m2(directory: Path) -> Answer:
    trace = _trace(
        directory / "t.kvtrace",
        _values(dict.fromkeys(range(4), 2)),
        kv_cache_dtype="fp8_e5m2",
        backend="FLASH_ATTN",
    )
    return reported(trace)


def _one_is_fine(directory: Path) -> Answer:
    trace = _trace(
        directory / "t.kvtrace",
        {key: values * 4 for key, values in _values(dict.fromkeys(range(4), 2)).items()},
        kv_cache_dtype="fp8_e4m3",
        backend="FLASH_ATTN",
    )
    return {"status": reported(trace).get("status")}


def _long_positions(directory: Path) -> Answer:
    """K of the slow rotary pairs outgrows a calibration on positions below 512; from 16,384 on all clips."""
    at = [
        *range(0, 512, 64),
        *range(512, 8_192, 960),
        *range(8_192, 16_384, 1_024),
        *range(16_384, 32_768, 2_048),
    ]
    random = np.random.default_rng(1)
    rows = REQUESTS * len(at)
    tensors: Tensors = {}
    for layer in range(3):
        for tensor, amax in AMAX.items():
            x = random.uniform(-1, 1, (rows, 2, 32)).astype(np.float32)
            tensors[layer, tensor] = x / np.abs(x).max(axis=2, keepdims=True) * amax
        ends = (1.0, 1.0, 4.0) if layer else (1.0, 1.13, 4.0)
        grown = np.interp(np.array(at * REQUESTS), [8_000, 16_384, 32_768], ends)
        tensors[layer, "k"] = tensors[layer, "k"] * grown[:, None, None] / 1.05
    trace = _trace(directory / "t.kvtrace", tensors, at)
    stored = _stored("model.layers", range(3), projections=False)
    model = {"num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    path = checkpoint(directory / "ckpt", stored, model=model, quantization=COMPRESSED)
    answer = reported(trace, [path])
    limit = re.search(r"--max-model-len ([0-9]+)", answer.get("action") or "")
    return {"first": answer.get("first"), "limit": limit and int(limit[1])}


SOUND = {"status": "sound", "first": None}

CASES = (
    Case(
        "hybrid-trace",
        "sglang#37446",
        "sound; calibrate works on layers 3, 7, 11",
        _hybrid,
        SOUND | {"layers": [], "remedy": "elsewhere", "calibrated": [3, 7, 11], "per head": [3, 7, 11]},
    ),
    Case(
        "hybrid-trace-with-draft-scales",
        "1Cat-vLLM#447",
        "sound; the draft head's scales are no layer's of the model",
        _hybrid_with_draft,
        SOUND | {"layers": [], "remedy": "elsewhere", "calibrated": [3, 7, 11], "per head": [3, 7, 11]},
    ),
    Case(
        "shared-cache-trace",
        "vllm#55559, #49262",
        "layers 6 to 9 read the cache of 4 or 5 and need its scales; calibrate copies them",
        _shared,
        {
            "status": "fault",
            "first": "missing-layers",
            "layers": [6, 7, 8, 9],
            "remedy": "recalibrate",
            "calibrated": list(range(10)),
        },
    ),
    Case(
        "two-head-shapes",
        "Gemma-4-31B: 16 × 256 and 4 × 512",
        "sound; calibrate per tensor works; layers of one head show one",
        _two_head_shapes,
        SOUND | {"layers": [], "remedy": "elsewhere", "calibrated": list(range(6)), "heads of layer 2": 1},
    ),
    Case(
        "left-in-bf16-on-purpose",
        "Model-Optimizer#2272",
        "sound: layer 2 is not FP8, so nothing is missing",
        _left_in_bf16,
        SOUND | {"layers": [], "remedy": "elsewhere"},
    ),
    Case(
        "e5m2",
        "vllm#41343",
        "scales cannot help in E5M2: use fp8_e4m3 with calibrated scales",
        _e5m2,
        {"status": "suspect", "first": "e5m2-rounding", "layers": [], "remedy": "change setup"},
    ),
    Case(
        "long-positions",
        "onnxruntime-genai kv_cache_calibration.py",
        "K clips from 8,192 on, where a third of the vectors clip: that is the limit, not 16,384",
        _long_positions,
        {"first": "drift-position", "limit": 8192},
    ),
    Case(
        "one-is-fine",
        "club-3090#594",
        "sound: 1.0 covers all, within 0.1 dB of the rounding floor",
        _one_is_fine,
        {"status": "sound"},
    ),
)
