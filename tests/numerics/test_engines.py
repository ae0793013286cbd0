"""What every engine's record promises: its forms agree, and it runs without a compiled one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kvtrace.errors import InputError
from kvtrace.numerics import ENGINES, round_trip
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.compiled import LANES, cache_write, fill_errors
from kvtrace.numerics.error_counts import error_counts
from kvtrace.numerics.limits import max_flushed_code, max_in_range_code, max_unclipped_code

PAIRS = [(name, fmt) for name, engine in ENGINES.items() for fmt in engine.formats]
DTYPES = ("bfloat16", "float16", "float32")
SCALES = np.array([2.0**-9, 1 / 448, 0.013, 0.37, 1.0, 2.0, 3.7, 1e4], np.float32)


def some_magnitudes(dtype: str) -> np.ndarray:
    """Every finite one of a 16-bit dtype, 50,000 of float32; ascending."""
    if dtype == "float32":
        normal = np.abs(np.random.default_rng(3).normal(0, 90, 50_000)).astype(np.float32)
        return np.unique(normal)
    return magnitudes_of(np.arange(MAX_FINITE_CODE[dtype] + 1), dtype)


def without_kernel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(ENGINES, name, replace(ENGINES[name], kernel=None))


@pytest.mark.parametrize(("name", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_form_errs_as_the_form_on_tensors_does(name: str, fmt: str, dtype: str) -> None:
    if ENGINES[name].kernel is None:
        pytest.skip("it has no compiled form")
    magnitude = some_magnitudes(dtype)
    compiled = np.empty((len(magnitude), LANES))
    fill_errors(magnitude, np.resize(SCALES, LANES), cache_write(name, fmt, dtype), compiled)
    x = torch.from_numpy(magnitude).to(getattr(torch, dtype))
    for scale, found in zip(SCALES, compiled.T, strict=False):
        restored = round_trip(x, float(scale), engine=name, format=fmt).restored
        np.testing.assert_array_equal(found, (x.double() - restored).square().numpy())


@pytest.mark.parametrize(("name", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_compiled_form_counts_are_equal_and_squared_sums_but_for_their_last_bits(
    monkeypatch: pytest.MonkeyPatch, name: str, fmt: str, dtype: str
) -> None:
    magnitude = some_magnitudes(dtype)[::7]
    magnitude = magnitude[magnitude < 1e6]
    place = np.arange(len(magnitude), dtype=np.uint32)
    count = np.random.default_rng(5).integers(1, 1000, len(magnitude)).astype(np.float64)
    start = np.array([0, 10, 10, len(magnitude)])  # the second cell is empty
    arguments = (magnitude, place, count, start, SCALES)
    compiled = error_counts(*arguments, engine=name, format=fmt, dtype=dtype)
    without_kernel(monkeypatch, name)
    on_tensors = error_counts(*arguments, engine=name, format=fmt, dtype=dtype)
    np.testing.assert_array_equal(on_tensors.counts, compiled.counts)
    np.testing.assert_allclose(on_tensors.squares, compiled.squares, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("name", "fmt"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_are_the_same_with_and_without_a_compiled_form(
    monkeypatch: pytest.MonkeyPatch, name: str, fmt: str, dtype: str
) -> None:
    limits = (max_in_range_code, max_unclipped_code, max_flushed_code)
    scales = SCALES.reshape(2, 4)
    compiled = [limit(scales, dtype, engine=name, format=fmt) for limit in limits]
    without_kernel(monkeypatch, name)
    on_tensors = [limit(scales, dtype, engine=name, format=fmt) for limit in limits]
    np.testing.assert_array_equal(on_tensors, compiled)
    assert {one.dtype for one in on_tensors} == {np.dtype(np.int32)}


def test_the_compiled_form_of_an_engine_without_one_is_an_error_that_says_what_counts_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_kernel(monkeypatch, "sglang")
    with pytest.raises(InputError, match=r"sglang has no compiled cache write; .*error_counts"):
        cache_write("sglang", "e4m3fn", "bfloat16")
