from __future__ import annotations

import gfloat
import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat.formats import format_info_ocp_e4m3, format_info_ocp_e5m2
from support import fp8_oracle
from support.fp8_oracle import GRIDS, codes_of, decode, outcome, quotient, values_of_bits

from kvtrace.errors import InputError
from kvtrace.numerics import ENGINES, FORMATS, counted, dequantize, quantize, round_trip
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.compiled import LANES, cache_write, fill_errors
from kvtrace.numerics.limits import max_flushed_code, max_in_range_code, max_unclipped_code

ALL_BITS = np.arange(65_536, dtype=np.uint16)
DTYPES = ("bfloat16", "float16")
PAIRS = [(name, fmt) for name in fp8_oracle.ENGINES for fmt in ENGINES[name].formats]


def _scales() -> list[np.float32]:
    absmaxima = [0.37, 3.140625, 12.5, 117.0, 1000.0]  # 12.5 and 117 are bf16 values, as absmaxima are
    exact = [np.float32(a / 448) for a in absmaxima]
    rounded = [np.float32(ml_dtypes.bfloat16(s)) for s in exact]
    powers = [np.float32(2.0**n) for n in (-20, -9, -6, -1, 0, 1, 3, 10)]
    tiny_and_huge = [np.float32(s) for s in (1e-40, 1.2e-38, 1e-30, 1e-8, 1e8, 1e30, 3e38)]
    return [*exact, *rounded, *powers, np.float32(1 / 448), *tiny_and_huge]


SCALES = _scales()


def test_at_least_twenty_scales_are_tried() -> None:
    assert len(set(SCALES)) >= 20


@pytest.mark.parametrize(("engine", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_and_values_of_every_16_bit_pattern_equal_the_oracle(engine: str, fmt: str, dtype: str) -> None:
    x = torch.from_numpy(ALL_BITS.copy()).view(getattr(torch, dtype))
    x32 = values_of_bits(ALL_BITS, dtype)
    codes = quantize(x[None], torch.tensor(SCALES)[:, None], engine=engine, format=fmt).numpy()
    values = dequantize(torch.from_numpy(codes), torch.tensor(SCALES)[:, None], format=fmt).numpy()
    assert codes.dtype == np.uint8
    for scale, found, found_values in zip(SCALES, codes, values, strict=True):
        y = quotient(x32, scale, engine, dtype)
        expected = codes_of(y, engine, fmt)
        is_nan = np.isnan(y) & (engine != "vllm-cpu")
        np.testing.assert_array_equal(found[~is_nan], expected[~is_nan], err_msg=f"scale {scale!r}")
        assert np.isnan(found_values[is_nan]).all()
        with np.errstate(over="ignore"):
            finite_values = decode(expected[~is_nan], fmt).astype(np.float32) * scale
        np.testing.assert_array_equal(found_values[~is_nan], finite_values)


@pytest.mark.parametrize(("fmt", "info"), [("e4m3fn", format_info_ocp_e4m3), ("e5m2", format_info_ocp_e5m2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vllm_cuda_rounds_as_gfloat_does(fmt: str, info: gfloat.FormatInfo, dtype: str) -> None:
    x = torch.from_numpy(ALL_BITS.copy()).view(getattr(torch, dtype))
    x32 = values_of_bits(ALL_BITS, dtype)
    for scale in SCALES:
        with np.errstate(all="ignore"):
            y = (x32 / scale).astype(np.float64)
        number = ~np.isnan(y)
        rounded = gfloat.round_ndarray(info, y[number], gfloat.RoundMode.TiesToEven, sat=True)
        found = dequantize(quantize(x, float(scale), format=fmt), 1.0, format=fmt).numpy()
        np.testing.assert_array_equal(found[number], rounded)
        assert np.isnan(found[~number]).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_code_decodes_to_the_value_that_ml_dtypes_gives(fmt: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(getattr(ml_dtypes, f"float8_{fmt}")).astype(np.float32)
    np.testing.assert_array_equal(dequantize(torch.from_numpy(codes), 1.0, format=fmt).numpy(), expected)


@pytest.mark.parametrize(("engine", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_of_range_clipped_and_flushed_equal_the_oracle(engine: str, fmt: str, dtype: str) -> None:
    x = torch.from_numpy(ALL_BITS.copy()).view(getattr(torch, dtype))
    x32 = values_of_bits(ALL_BITS, dtype)
    finite = np.isfinite(x32)
    for scale in SCALES[::3]:
        found = round_trip(x, float(scale), engine=engine, format=fmt)
        expected = outcome(x32, scale, engine, fmt, dtype)
        np.testing.assert_array_equal(found.restored.numpy()[finite], expected.restored[finite])
        np.testing.assert_array_equal(found.out_of_range.numpy(), expected.out_of_range)
        np.testing.assert_array_equal(found.clipped.numpy(), expected.clipped)
        np.testing.assert_array_equal(found.flushed.numpy(), expected.flushed)


@pytest.mark.parametrize(("engine", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_are_the_last_magnitudes_in_range_unclipped_and_flushed(
    engine: str, fmt: str, dtype: str
) -> None:
    codes = np.arange(MAX_FINITE_CODE[dtype] + 1, dtype=np.uint16)
    x32 = values_of_bits(codes, dtype)
    in_range, unclipped, flushed = (
        limit(np.array(SCALES), dtype, engine=engine, format=fmt)
        for limit in (max_in_range_code, max_unclipped_code, max_flushed_code)
    )
    for i, scale in enumerate(SCALES):
        expected = outcome(x32, scale, engine, fmt, dtype)
        assert in_range[i] == np.flatnonzero(~expected.out_of_range)[-1]
        assert unclipped[i] == np.flatnonzero(~expected.clipped)[-1]
        assert flushed[i] == np.flatnonzero(expected.flushed).max(initial=0)


@pytest.mark.parametrize(("engine", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_cache_write_errs_on_every_finite_magnitude_as_the_oracle_does(
    engine: str, fmt: str, dtype: str
) -> None:
    codes = np.arange(MAX_FINITE_CODE[dtype] + 1, dtype=np.uint16)
    x32 = values_of_bits(codes, dtype)
    np.testing.assert_array_equal(magnitudes_of(codes, dtype), x32)
    errors = np.empty((len(codes), LANES))
    fill_errors(x32, np.resize(SCALES, LANES), cache_write(engine, fmt, dtype), errors)
    for scale, found in zip(SCALES, errors.T, strict=False):
        restored = outcome(x32, scale, engine, fmt, dtype).restored
        np.testing.assert_array_equal(found, (x32.astype(np.float64) - restored) ** 2)


def test_every_count_is_in_its_own_cell_where_cells_are_taken_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counted, "_DENSE_COUNTERS", 1)
    # At scale 1.0: 2^-12 is flushed, 1.0 kept, 450 out of range and rounded to 448, 500 clipped.
    magnitude = np.array([2.0**-12, 1.0, 450.0, 500.0], np.float32)
    place, count = np.array([0, 1, 2, 0, 3, 1], np.uint32), np.array([3.0, 1.0, 5.0, 7.0, 2.0, 4.0])
    start = np.array([0, 3, 5, 6])
    write = cache_write("vllm-cuda", "e4m3fn", "bfloat16")
    found = counted.counted_errors(magnitude, place, count, start, np.ones(1, np.float32), write)
    out_of_range, clipped, flushed = found.counts[:, 0].tolist()
    assert (out_of_range, clipped, flushed) == ([5, 2, 0], [0, 2, 0], [3, 7, 0])


def test_limits_of_float32_are_exact_at_the_boundary() -> None:
    scale = np.array([0.1, 1.0, 3.7], np.float32)
    last = max_in_range_code(scale, "float32", engine="vllm-cuda", format="e4m3fn").view(np.float32)
    assert (last / scale <= 448).all()
    assert (np.nextafter(last, np.float32(np.inf)) / scale > 448).all()


@pytest.mark.parametrize("engine", ["vllm-cuda", "sglang"])
def test_float32_input_takes_the_same_rules(engine: str) -> None:
    x = np.random.default_rng(7).normal(0, 90, 50_000).astype(np.float32)
    x[:4] = [0.0, -0.0, np.inf, -np.inf]
    scale = np.float32(0.37)
    found = quantize(torch.from_numpy(x), 0.37, engine=engine)
    np.testing.assert_array_equal(found.numpy(), codes_of(x / scale, engine, "e4m3fn"))


def test_a_scale_per_head_is_broadcast_over_tokens_and_head_dim() -> None:
    x = torch.full((2, 3, 4), 8.0, dtype=torch.bfloat16)
    scale = torch.tensor([1.0, 2.0, 4.0]).view(3, 1)
    values = dequantize(quantize(x, scale), 1.0)
    assert values.shape == (2, 3, 4)
    assert values[:, :, 0].tolist() == [[8.0, 4.0, 2.0]] * 2


def test_the_clip_point_lies_half_a_step_above_the_maximum_and_a_whole_one_where_it_truncates() -> None:
    at_464 = torch.tensor([448.0, 449.0, 464.0, 465.0, 479.0, 480.0])
    nearest = round_trip(at_464, 1.0, engine="vllm-cuda")
    assert nearest.out_of_range.tolist() == [False, True, True, True, True, True]
    assert nearest.clipped.tolist() == [False, False, False, True, True, True]
    assert round_trip(at_464, 1.0, engine="vllm-cpu").clipped.tolist() == [False] * 5 + [True]


def test_sglang_differs_from_vllm_cuda_in_a_few_codes() -> None:
    x = torch.from_numpy(np.random.default_rng(1).normal(0, 3, 100_000).astype(np.float32)).bfloat16()
    scale = float(x.abs().max()) / 448
    differ = (quantize(x, scale, engine="sglang") != quantize(x, scale)).float().mean().item()
    assert 0.005 < differ < 0.06  # the engine's own codes differed in about 2.5 %


def test_rocm_rounds_fp16_quotients_to_fp16_and_bf16_ones_not() -> None:
    # 1.0625 · (1 + 2^-12) lies just above the tie of 1.0 and 1.125; in fp16 it is the tie, which goes to 1.0.
    scale = 1 / (1 + 2.0**-12)
    x = torch.tensor([1.0625])
    assert dequantize(quantize(x.half(), scale, engine="vllm-rocm"), 1.0).item() == 1.0
    assert dequantize(quantize(x.bfloat16(), scale, engine="vllm-rocm"), 1.0).item() == 1.125
    assert dequantize(quantize(x.half(), scale, engine="vllm-cuda"), 1.0).item() == 1.125


def test_vllm_cpu_special_values_are_those_of_the_operator() -> None:
    x = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 2.0**-10, -(2.0**-10)])
    assert quantize(x, 1.0, engine="vllm-cpu").tolist() == [0x7E, 0x7E, 0xFE, 0, 0, 0, 0x80]
    assert quantize(x[:3], 1.0, engine="vllm-cpu", format="e5m2").tolist() == [0x7B, 0x7B, 0xFB]


def test_unknown_names_and_pairs_are_refused_with_what_there_is() -> None:
    x = torch.ones(1)
    with pytest.raises(InputError, match="vllm-cuda, vllm-triton"):
        quantize(x, 1.0, engine="cuda")
    with pytest.raises(InputError, match="e4m3fn, e5m2"):
        quantize(x, 1.0, format="fp8")
    with pytest.raises(InputError, match="does not write e4m3fnuz"):
        quantize(x, 1.0, engine="vllm-cpu", format="e4m3fnuz")


def test_only_uint8_codes_are_dequantized() -> None:
    codes = quantize(torch.tensor([1.0, -0.3]), 0.5)
    for view, hint in (
        (
            codes.view(torch.float8_e4m3fn),
            r"float8_e4m3fn; uint8 codes are expected; \.view\(torch\.uint8\) ",
        ),
        (codes.long(), r"int64; uint8 codes are expected$"),
        (codes.float(), r"float32; uint8 codes are expected$"),
    ):
        with pytest.raises(InputError, match=hint):
            dequantize(view, 0.5)
    assert dequantize(codes.view(torch.float8_e4m3fn).view(torch.uint8), 0.5).tolist() == [1.0, -0.3125]


def test_the_oracle_itself_knows_the_published_extremes() -> None:
    assert [GRIDS[f].values[-1] for f in ("e4m3fn", "e5m2", "e4m3fnuz")] == [448, 57344, 240]
    assert [GRIDS[f].values[1] for f in ("e4m3fn", "e5m2", "e4m3fnuz")] == [2.0**-9, 2.0**-16, 2.0**-10]


@pytest.mark.gpu
@pytest.mark.parametrize(("engine", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpu_codes_equal_cpu_codes(engine: str, fmt: str, dtype: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x = torch.from_numpy(ALL_BITS.copy()).view(getattr(torch, dtype))
    x = x[torch.isfinite(x)]
    scale = torch.tensor(SCALES)[:, None]
    on_gpu = quantize(x.cuda()[None], scale.cuda(), engine=engine, format=fmt).cpu()
    assert torch.equal(on_gpu, quantize(x[None], scale, engine=engine, format=fmt))
