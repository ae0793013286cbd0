"""The formats against vLLM's own kernels (Triton's interpreter) and torch references: make test-formats.

Not here, as nothing of them runs without a GPU: nvfp4, nvfp4_4over6, every read path of an attention kernel.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from kvtrace.formats import find_format, with_rotary_dim
from kvtrace.formats.centroids import centroids
from kvtrace.formats.tensors import int4_per_token_head as int4
from kvtrace.formats.tensors.rotation import hadamard
from kvtrace.formats.tensors.steps import e4m3

pytestmark = pytest.mark.vllm
OPS = "v1.attention.ops"
TOKENS, HEADS, BLOCK = 12, 3, 16


@pytest.fixture(scope="session")
def operator():
    pytest.importorskip("triton")
    from vllm_formats.vllm_modules import operator

    return operator


def values(head_dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, TOKENS, HEADS, head_dim, generator=generator).unbind()
    k[..., 5] *= 30  # a channel of keys far from the others
    k[0, 0], v[0, 1], v[1, 0] = 0, 0.5, v[1, 0] * 1e-5
    return k.bfloat16(), v.bfloat16()


def per_token_head(operator, k, v, dtype):
    """Return codes and scales of K and V as vLLM's kernel stores them."""
    module = operator(f"{OPS}.triton_reshape_and_cache_flash")
    codes = [torch.zeros(1, BLOCK, HEADS, k.shape[-1], dtype=dtype) for _ in "kv"]
    scales = [torch.zeros(1, BLOCK, HEADS) for _ in "kv"]
    # An FP8 cache is checked up to its cast, which the interpreter gets wrong: the cache is float32.
    module._PER_TOKEN_HEAD_QUANT_PARAMS.setdefault(torch.float32, (448.0, -448.0))
    module.triton_reshape_and_cache_flash_per_token_head_quant(
        k, v, *codes, *scales, torch.arange(TOKENS), kv_quant_mode=None
    )
    return [
        (code[0, :TOKENS].float(), scale[0, :TOKENS, :, None])
        for code, scale in zip(codes, scales, strict=True)
    ]


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_int8_per_token_head_is_what_the_kernel_stores(operator, head_dim) -> None:
    k, v = values(head_dim)
    stored = per_token_head(operator, k, v, torch.int8)
    for found, (codes, scale) in zip(
        find_format("int8_per_token_head").round_trip(k, v), stored, strict=True
    ):
        assert torch.equal(found, codes * scale)


@pytest.mark.parametrize("head_dim", [64, 96])
def test_fp8_per_token_head_is_what_the_kernel_casts(operator, head_dim) -> None:
    k, v = values(head_dim)
    stored = per_token_head(operator, k, v, torch.float32)
    for found, (quotients, scale) in zip(
        find_format("fp8_per_token_head").round_trip(k, v), stored, strict=True
    ):
        assert torch.equal(found, e4m3(quotients) * scale)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_int4_per_token_head_is_what_the_kernel_stores(operator, head_dim) -> None:
    module = operator(f"{OPS}.int4_per_token_head")
    k, v = values(head_dim)
    packed = [torch.zeros(1, BLOCK, HEADS, head_dim // 2, dtype=torch.uint8) for _ in "kv"]
    scales = [torch.zeros(1, BLOCK, HEADS) for _ in "kv"]
    module.reshape_and_cache_int4(
        k, v, *packed, torch.arange(TOKENS), k_scale_cache=scales[0], v_scale_cache=scales[1]
    )
    for x, codes, scale in zip((k, v), packed, scales, strict=True):
        rotated = int4.rotated(x)
        assert torch.equal(rotated, module.single_rht(x.float()).to(x.dtype))
        own_codes, own_scale = int4.codes_of(rotated)
        both = codes[0, :TOKENS]
        assert torch.equal(own_codes, torch.stack([both & 15, both >> 4], -1).flatten(-2).float())
        assert torch.equal(own_scale[..., 0].view(torch.int32), scale[0, :TOKENS].view(torch.int32))
        block = head_dim & -head_dim
        read = module.single_rht(int4.values_of(own_codes, own_scale), inverse=True) / block
        torch.testing.assert_close(int4.round_trip(x), read, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_turboquant_is_what_the_kernels_store_and_read_back(operator, name, head_dim) -> None:
    store = operator(f"{OPS}.triton_turboquant_store")
    decode = operator(f"{OPS}.triton_turboquant_decode")
    levels = operator("model_executor.layers.quantization.turboquant.centroids").get_centroids
    form, (k, v) = find_format(name), values(head_dim)
    key_bits, value_bits = form.k.bits, form.v.bits
    c = levels(head_dim, key_bits)
    assert torch.equal(c, torch.from_numpy(centroids(head_dim, key_bits)))
    cache = torch.zeros(1, BLOCK, HEADS, form.slot_bytes(head_dim), dtype=torch.uint8)
    key_bytes = form.k.num_bytes(head_dim)
    store.triton_turboquant_store(
        k, v, cache, torch.arange(TOKENS, dtype=torch.int32), hadamard(torch.eye(head_dim)),
        (c[1:] + c[:-1]) / 2, key_bits, key_bytes, value_bits,
    )  # fmt: skip
    read_k, read_v = torch.zeros(2, 1, HEADS, TOKENS, head_dim, dtype=torch.float16).unbind()
    decode._tq_full_dequant_kv[(TOKENS, HEADS)](
        cache, torch.zeros(1, 1, dtype=torch.int32), c, read_k, read_v,
        *read_k.stride()[:3], *read_v.stride()[:3], *cache.stride()[:3], 1,
        HEAD_DIM=head_dim, BLOCK_SIZE=BLOCK, NUM_KV_HEADS=HEADS, MSE_BYTES=key_bytes - 2, KPS=key_bytes,
        VQB=value_bits, VAL_DATA_BYTES=form.v.num_bytes(head_dim) - 4, MSE_BITS=key_bits, KEY_FP8=0,
        BLOCK_D=head_dim, NORM_CORRECTION=1,
    )  # fmt: skip
    # The kernel's output is float16, and K's is still rotated: values differ by its last place.
    found_k, found_v = form.round_trip(k, v)
    for found, read in ((hadamard(found_k), read_k), (found_v, read_v)):
        read = read[0].transpose(0, 1).float()
        off = (found - read).abs() > 2e-3 * read.abs() + 1e-3
        assert off.sum() <= 2  # of codes on a rounding boundary


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_ultraquant_is_vllms_torch_reference(operator, head_dim) -> None:
    reference = operator(f"{OPS}.ultraquant.reference")
    k, v = values(head_dim)
    found_k, found_v = find_format("ultraquant_4bit").round_trip(k, v)
    assert torch.equal(found_v, reference.ultraquant_encode_decode(v, rotate=False))
    read = reference.ultraquant_encode_decode(k, rotate=True)
    torch.testing.assert_close(hadamard(found_k), read, atol=1e-5, rtol=1e-5)


def test_the_triton_writer_stores_e4m3_bytes_whatever_it_is_asked_for(operator, monkeypatch) -> None:
    module = operator(f"{OPS}.triton_reshape_and_cache_flash")
    monkeypatch.setattr(module, "_is_supported_kv_cache_dtype", lambda _: True)  # both ask for a GPU
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    k = torch.full((1, 1, 16), 3.5, dtype=torch.bfloat16)
    cache = [torch.zeros(1, BLOCK, 1, 16, dtype=torch.uint8) for _ in "kv"]
    module.triton_reshape_and_cache_flash(
        k, k, *cache, torch.zeros(1, dtype=torch.int64), "fp8_e5m2", torch.ones(1), torch.ones(1)
    )
    byte = cache[0][0, 0, 0, 0]
    assert byte == torch.tensor(3.5).to(torch.float8_e4m3fn).view(torch.uint8) == 0x46
    assert byte.view(torch.float8_e5m2).item() == 6.0


@pytest.mark.skipif("VLLM_0_33" not in os.environ, reason="VLLM_0_33: the folder of vLLM 0.33's sources")
@pytest.mark.parametrize("name", ["octave_k3v4", "octave_k3v3", "octave_k3v3_compact"])
@pytest.mark.parametrize(("head_dim", "rotary"), [(64, 64), (128, 128), (256, 64)])
def test_octave_is_vllms_torch_reference(name, head_dim, rotary) -> None:
    path = Path(os.environ["VLLM_0_33"]) / "vllm/v1/attention/ops/rocm_octave.py"
    spec = importlib.util.spec_from_file_location("rocm_octave", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    form = with_rotary_dim(find_format(name), rotary)
    reference = module.OctaveFormat.from_cache_dtype(name, head_dim, rotary)
    assert form.slot_bytes(head_dim) == reference.slot_bytes
    k, v = values(head_dim)
    slots = module.reference_quantize(k, v, reference)
    read = module.reference_dequantize(slots, reference)
    for found, expected in zip(form.round_trip(k, v), read, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
