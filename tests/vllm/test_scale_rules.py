"""kvtrace's rules for scales against vLLM's own code: its name mapping, and its two loading methods on a
bare layer."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvtrace.scales import ResolvedScales, ScaleArtifact, resolve
from kvtrace.scales.artifact import DeclaredModel, DeclaredScheme, StoredScale
from kvtrace.scales.formats import FORMATS
from kvtrace.scales.names import vllm_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.vllm

ATTENTION = "model.layers.0.self_attn"
VALUES = (None, 0.5, 0.25, 0.0, -0.5, math.nan, math.inf)


@pytest.mark.parametrize(
    "suffix",
    [
        "k_scale", "v_scale", "q_scale", "kv_scale", "attn.k_scale", "attn.v_scale",
        "k_proj.k_scale", "v_proj.v_scale", "qkv_proj.k_scale", "qkqkv_proj.v_scale",
        "k_cache.scale", "v_cache.scale", "q.scale", "key_scale", "k_scale_inv", "cache_k_scale",
        "k_proj.output_scale", "v_proj.output_scale", "q_proj.output_scale", "k_proj.scale", "k_norm.k_scale",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["compressed-tensors", "fp8", "quark"])
def test_a_name_maps_to_what_vllm_maps_it_to(suffix: str, method: str) -> None:
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig
    from vllm.model_executor.model_loader.weight_utils import maybe_remap_kv_scale_name

    parameters = {f"{ATTENTION}.attn.{tensor}_scale": None for tensor in "kvq"}
    name = f"{ATTENTION}.{suffix}"
    if method in ("fp8", "quark"):
        mapper = (Fp8Config if method == "fp8" else QuarkConfig).get_cache_scale_mapper()
        ((name, _),) = mapper.apply([(name, None)])
    target = maybe_remap_kv_scale_name(name, parameters)
    found = vllm_tensor(f"{ATTENTION}.{suffix}", method)
    if target not in parameters:
        assert found is None
    else:
        assert found is not None
        assert target == f"{ATTENTION}.attn.{'k' if found == 'kv' else found}_scale"


def artifact(method: str, scales: dict[str, Sequence[float]], **scheme: Any) -> ScaleArtifact:
    from pathlib import Path

    return ScaleArtifact(
        path=Path("made"),
        format=next(form for form in FORMATS if form.quant_method == method),
        granularity="attn_head" if scheme.get("strategy") == "attn_head" else "tensor",
        scales=tuple(
            StoredScale(0, tensor, tuple(v), (len(v),), "F32", "f", f"{ATTENTION}.{tensor}_scale")  # type: ignore[arg-type]
            for tensor, v in scales.items()
        ),
        scheme=DeclaredScheme(
            quant_method=method,
            has_kv_scheme=True,
            num_bits=8,
            type="float",
            dynamic=False,
            symmetric=True,
            **scheme,
        ),
        model=DeclaredModel(num_layers=1, num_kv_heads=4, num_attention_heads=8),
    )


def resolved(method: str, scales: dict[str, Sequence[float]], **options: Any) -> ResolvedScales:
    scheme = options.pop("scheme", {})
    return resolve(artifact(method, scales, **scheme), num_layers=1, kv_heads_per_layer=4, **options)


def bare_layer(num_kv_heads: int = 4) -> Any:
    import torch

    layer = torch.nn.Module()
    layer.kv_cache_dtype, layer.num_kv_heads = "fp8", num_kv_heads
    for name in ("k", "v", "q", "prob"):
        layer.register_buffer(f"_{name}_scale", torch.tensor(1.0))
        setattr(layer, f"_{name}_scale_float", 1.0)
        setattr(layer, f"_{name}_scale_cpu", torch.tensor(1.0))
    return layer


def load(layer: Any, scales: dict[str, Sequence[float]]) -> None:
    import torch
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    for tensor, values in scales.items():
        parameter = getattr(layer, f"{tensor}_scale")
        loader = getattr(parameter, "weight_loader", default_weight_loader)
        loader(parameter, torch.tensor(values, dtype=torch.float32))


@pytest.mark.parametrize(("k", "v"), list(itertools.product(VALUES, VALUES)))
def test_the_base_method_ends_with_vllms_scales_or_dies_where_vllm_dies(
    k: float | None, v: float | None
) -> None:
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    scales = {tensor: [value] for tensor, value in (("k", k), ("v", v)) if value is not None}
    found = resolved("fp8", scales)
    layer = bare_layer()
    method = BaseKVCacheMethod(None)  # type: ignore[arg-type]
    method.create_weights(layer)
    load(layer, scales)
    if found.notes_of("crash"):
        with pytest.raises(AssertionError):
            method.process_weights_after_loading(layer)
        return
    method.process_weights_after_loading(layer)
    assert [found.scale(0, 3, "k").value, found.scale(0, 3, "v").value] == pytest.approx(
        [layer._k_scale_float, layer._v_scale_float], nan_ok=True
    )
    assert found.scale(0, 0, "q").value == layer._q_scale_float


def test_the_base_method_refuses_several_values_where_vllm_does() -> None:
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

    scales = {"k": [0.5, 0.5], "v": [0.5]}
    assert "ValueError" in resolved("fp8", scales).notes_of("crash")[0].text
    layer = bare_layer()
    BaseKVCacheMethod(None).create_weights(layer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scalar"):
        load(layer, scales)


@pytest.mark.parametrize("strategy", ["tensor", "attn_head"])
@pytest.mark.parametrize(("rank", "tp"), [(0, 1), (0, 2), (1, 2), (2, 4), (0, 8), (5, 8), (7, 8)])
@pytest.mark.parametrize(
    "scales",
    [
        {},
        {"k": [0.5]},
        {"k": [0.5], "v": [0.0]},
        {"k": [math.nan], "v": [-1.0]},
        {"k": [0.1, 0.2, 0.3, 0.4], "v": [4.0, 3.0, 2.0, 1.0]},
        {"k": [0.1, math.nan, 0.3, 0.4], "v": [4.0, 3.0, 2.0, 1.0], "q": [1, 5, 2, 2, 8, 3, 0.5, 0.25]},
        {"k": [0.1, 0.2], "v": [0.1, 0.2]},
    ],
)  # fmt: skip
def test_the_compressed_tensors_method_ends_with_vllms_scales_or_dies_where_vllm_dies(
    monkeypatch: pytest.MonkeyPatch, scales: dict[str, list[float]], rank: int, tp: int, strategy: str
) -> None:
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors

    # One process stands for each rank in turn: all that vLLM asks of the others is the number of this one.
    monkeypatch.setattr(compressed_tensors, "get_tensor_model_parallel_rank", lambda: rank)
    monkeypatch.setattr(compressed_tensors, "get_tensor_model_parallel_world_size", lambda: tp)
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "dynamic": False, "symmetric": True}
    config = SimpleNamespace(kv_cache_scheme=scheme, total_num_heads=8, total_num_kv_heads=4)
    method = compressed_tensors.CompressedTensorsKVCacheMethod(config)  # type: ignore[arg-type]
    heads = max(1, 4 // tp)
    first = rank * heads if tp <= 4 else rank // (tp // 4)
    layer = bare_layer(heads)
    method.create_weights(layer)
    per_head, one = (
        resolved("compressed-tensors", scales, tp=tp, backend=backend, scheme={"strategy": strategy})
        for backend in ("FLASH_ATTN", "CPU_ATTN")
    )
    try:
        load(layer, scales)
    except (AssertionError, RuntimeError):
        assert per_head.notes_of("crash")
        return
    method.process_weights_after_loading(layer)
    for tensor in ("k", "v", "q"):
        buffer = getattr(layer, f"_{tensor}_scale").flatten().tolist()
        expected = buffer * heads if len(buffer) == 1 else buffer
        found = [per_head.scale(0, head, tensor).value for head in range(first, first + heads)]
        if not per_head.notes_of("crash"):  # else another rank dies
            assert found == pytest.approx(expected, nan_ok=True)
            in_one = one.scale(0, first, tensor).value
            assert in_one == pytest.approx(getattr(layer, f"_{tensor}_scale_float"), nan_ok=True)
