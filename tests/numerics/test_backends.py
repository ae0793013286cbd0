"""Attention backends: by which numerics they write, and what becomes of scales per head."""

from __future__ import annotations

import pytest

from kvtrace.numerics import ENGINES
from kvtrace.numerics.backends import BACKENDS, find_backend, honours_per_head, starts_per_head


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("flash-attn", "FLASH_ATTN"),
        ("FlashAttention", "FLASH_ATTN"),
        ("FLASH_ATTN_VLLM_V1", "FLASH_ATTN"),
        ("fa3", "FA3"),
        ("rocm_aiter_fa", "ROCM_AITER_FA"),
    ],
)
def test_a_backend_is_found_by_its_name_or_an_older_one_however_it_is_spelt(name: str, found: str) -> None:
    assert find_backend(name).name == found


def test_each_backend_is_written_by_numerics_that_there_are() -> None:
    assert {engine for one in BACKENDS for engine in one.engines} <= ENGINES.keys()


def test_flash_attention_alone_honours_scales_per_head_and_an_unknown_backend_neither_nor() -> None:
    honouring = {one.name for one in BACKENDS if honours_per_head(one.name)}
    assert honouring == {"FLASH_ATTN", "FLASH_ATTN_DIFFKV", "FA3", "FA4"}
    assert honours_per_head(None)
    assert not honours_per_head("FLASH_ATTN_MLA")
    assert starts_per_head("FLASH_ATTN_MLA") is None


def test_vllm_refuses_scales_per_head_on_a_gpu_and_takes_the_maximum_on_a_cpu() -> None:
    refusing = {one.name for one in BACKENDS if starts_per_head(one.name) is False}
    by_vllm = {one.name for one in BACKENDS if any(name.startswith("vllm-") for name in one.engines)}
    assert refusing == by_vllm - {"FLASH_ATTN", "FLASH_ATTN_DIFFKV", "CPU_ATTN"}
    assert [one.name for one in BACKENDS if starts_per_head(one.name)] == ["CPU_ATTN"]


def test_a_backend_that_two_products_share_is_refused_by_vllm_alone() -> None:
    flashinfer = find_backend("FLASHINFER")
    assert flashinfer.refuses_per_head_on("vllm-cuda")
    assert not flashinfer.refuses_per_head_on("sglang")
