"""What kvtrace says of vLLM's cache dtypes, against vLLM's own code; no engine is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from kvtrace.numerics.backends import BACKENDS, starts_per_head

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

SCHEME = {"type": "float", "num_bits": 8, "dynamic": False, "symmetric": True}


def test_vllm_takes_the_names_that_are_advised_and_has_none_for_float32() -> None:
    from vllm.config.cache import CacheDType

    assert {"bfloat16", "float16"} <= set(get_args(CacheDType))
    assert "float32" not in get_args(CacheDType)


@pytest.mark.parametrize("strategy", ["tensor", "attn_head"])
def test_a_layers_default_is_fp8_where_the_checkpoint_declares_it_and_a_named_dtype_stays(
    strategy: str, model: Path
) -> None:
    """On the CPU platform, which starts with scales per head too."""
    from vllm.config import CacheConfig, ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    declared = CompressedTensorsConfig.from_config(
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {},
            "kv_cache_scheme": {**SCHEME, "strategy": strategy},
        }
    )
    served = ModelConfig(model=str(model), max_model_len=64)

    def in_effect(dtype: Any) -> str:
        cache = CacheConfig(block_size=32, cache_dtype=dtype)
        with set_current_vllm_config(VllmConfig(model_config=served, cache_config=cache)):
            name = f"model.layers.0.{dtype}.attn"
            layer = Attention(
                2, 64, 1.0, num_kv_heads=2, cache_config=cache, quant_config=declared, prefix=name
            )
        return str(layer.kv_cache_dtype)

    assert [in_effect(dtype) for dtype in ("auto", "bfloat16", "float16")] == ["fp8", "bfloat16", "float16"]


def test_the_default_is_fp8_for_modelopts_checkpoints_too() -> None:
    from vllm.utils.torch_utils import resolve_kv_cache_dtype_string

    declared = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
    model: Any = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=declared))
    assert resolve_kv_cache_dtype_string("auto", model).startswith("fp8")
    assert resolve_kv_cache_dtype_string("bfloat16", model) == "bfloat16"


def test_the_backends_that_are_said_to_refuse_scales_per_head_do_not_support_them() -> None:
    """Of those whose packages are here. FlashAttention's answer is that of its version: 3 needs a GPU. The
    CPU platform does not ask."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    held = set()
    for name in {one.name for one in BACKENDS} & set(AttentionBackendEnum.__members__) - {"CPU_ATTN"}:
        try:
            backend = AttentionBackendEnum[name].get_class()
        except ImportError:
            continue
        held.add(name)
        assert not backend.supports_per_head_quant_scales()
        assert starts_per_head(name) is (None if name.startswith("FLASH_ATTN") else False)
    assert held >= {"FLASH_ATTN", "FLEX_ATTENTION", "TRITON_ATTN", "ROCM_ATTN"}


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "fp8"])
def test_a_backend_without_scales_per_head_is_refused_whatever_the_dtype(dtype: Any) -> None:
    import torch
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    refused, taken = (
        AttentionBackendEnum.TRITON_ATTN.get_class().validate_configuration(
            head_size=128,
            dtype=torch.bfloat16,
            kv_cache_dtype=dtype,
            block_size=64,
            use_mla=False,
            has_sink=False,
            use_sparse=False,
            use_mm_prefix=False,
            use_per_head_quant_scales=per_head,
            device_capability=DeviceCapability(9, 0),
            attn_type="decoder",
        )
        for per_head in (True, False)
    )
    assert len(refused) == len(taken) + 1
