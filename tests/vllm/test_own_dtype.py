"""What kvtrace says of vLLM's cache dtypes, against vLLM's own code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from kvtrace.numerics.backends import BACKENDS, starts_per_head

pytestmark = pytest.mark.vllm


def test_vllm_takes_the_names_that_are_advised_and_has_none_for_float32() -> None:
    from vllm.config.cache import CacheDType

    assert {"bfloat16", "float16"} <= set(get_args(CacheDType))
    assert "float32" not in get_args(CacheDType)


def test_the_default_becomes_fp8_where_modelopt_declares_it_and_a_named_dtype_stays() -> None:
    """For compressed-tensors every layer does so itself: test_incident.py shows that by running."""
    from vllm.utils.torch_utils import resolve_kv_cache_dtype_string

    declared = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
    model: Any = SimpleNamespace(hf_config=SimpleNamespace(quantization_config=declared))
    assert resolve_kv_cache_dtype_string("auto", model).startswith("fp8")
    assert resolve_kv_cache_dtype_string("bfloat16", model) == "bfloat16"
    assert resolve_kv_cache_dtype_string("float16", model) == "float16"


def test_the_backends_that_do_not_start_with_scales_per_head_are_vllms() -> None:
    """By `supports_per_head_quant_scales`, of those whose packages are here. FlashAttention's answer is that
    of the version found; the CPU platform asks none."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    held = set()
    for name in {one.name for one in BACKENDS} & set(AttentionBackendEnum.__members__) - {"CPU_ATTN"}:
        try:
            found = AttentionBackendEnum[name].get_class()
        except ImportError:
            continue
        held.add(name)
        assert not found.supports_per_head_quant_scales()  # FlashAttention 3 needs a GPU
        assert starts_per_head(name) is (None if name.startswith("FLASH_ATTN") else False)
    assert held >= {"FLASH_ATTN", "FLEX_ATTENTION", "TRITON_ATTN", "ROCM_ATTN"}
