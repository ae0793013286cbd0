"""The numbers under a calibration: counts, costs and the search for the least error, against independent
oracles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.fabricate import fabricate_trace, request
from support.fp8_oracle import GRIDS, NEXT_VALUE, codes_of

from kvtrace.calibration.bfloat16 import nearest_bfloat16
from kvtrace.calibration.cost import round_trip_errors, scale_cost
from kvtrace.calibration.error_curve import e4m3fn_magnitudes, squared_errors
from kvtrace.calibration.magnitudes import Magnitudes, TraceSelection, count_magnitudes, merged
from kvtrace.calibration.mse_search import least_error_scale, no_clip_scale
from kvtrace.calibration.recipe import Recipe, scale_by
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUIET = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
ALL_BF16_SCALES = (np.arange(0x3000, 0x4500, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
"""Every bfloat16 from 2^-31 to 2048."""
ROUNDING = 1 + 1e-12
"""Sums of the same terms in another order."""


def group(values: NDArray[Any]) -> Magnitudes:
    magnitudes, counts = np.unique(np.abs(values).astype(np.float64), return_counts=True)
    return Magnitudes(magnitudes, counts.astype(np.int64))


def restored(x: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """The round trip of vLLM on CUDA by the oracle: float32 division, nearest even, float32
    multiplication."""
    y = x.astype(np.float32) / np.float32(scale)
    magnitudes = GRIDS["e4m3fn"].values[codes_of(y, "vllm-cuda", "e4m3fn") & 0x7F]
    return (magnitudes.astype(np.float32) * np.float32(scale)).astype(np.float64)


def oracle_error(values: NDArray[Any], scale: float) -> float:
    x = np.abs(values.astype(np.float64))
    return float(((x - restored(x, scale)) ** 2).sum())


bf16_values = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-300, 300, width=32) | st.sampled_from([0.0, -0.0, 1e-6, 1.0, 2.0, 464.0, 1000.0]),
).map(lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32))


# --- counts


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@settings(QUIET, max_examples=12)
@given(seed=st.integers(0, 1 << 30), rows_per_chunk=st.sampled_from([4, 16, 64]))
def test_counts_are_those_of_numpy_for_any_split_into_chunks_and_ranks(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, seed: int, rows_per_chunk: int
) -> None:
    rng = np.random.default_rng(seed)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, 60000.0])
    tensors = {}
    for key in ((0, "k"), (0, "v"), (1, "k"), (1, "v")):
        values = rng.normal(size=(20, 2, 4)) * 3
        values[rng.random(values.shape) < 0.1] = rng.choice(special)
        tensors[key] = values
    path = fabricate_trace(
        tmp_path_factory.mktemp("t") / "x.kvtrace",
        tensors,
        request_of_row=[row // 10 for row in range(20)],
        position_of_row=[row % 10 for row in range(20)],
        requests=[request(0, prompt_tokens=10), request(1, prompt_tokens=10)],
        dtype=dtype,
        ranks=[[0], [1]] if seed % 2 else None,
        rows_per_chunk=rows_per_chunk,
    )
    trace = open_trace(path)
    selection = rng.integers(-1, 2, size=20)
    counted = count_magnitudes([TraceSelection(trace, selection)], 2)
    kinds = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
    with np.errstate(over="ignore"):
        stored = {key: np.abs(v.astype(kinds[dtype]).astype(np.float64)) for key, v in tensors.items()}
    for side in (0, 1):
        for (layer, tensor), values in stored.items():
            for head in (0, 1):
                chosen = values[selection == side, head].ravel()
                if not len(chosen):
                    assert (layer, head, tensor) not in counted[side]
                    continue
                found = counted[side][layer, head, tensor]
                unique, counts = np.unique(chosen[np.isfinite(chosen)], return_counts=True)
                assert found.values.tolist() == unique.tolist()
                assert found.counts.tolist() == counts.tolist()
                assert found.num_nonfinite == (~np.isfinite(chosen)).sum()


@QUIET
@given(values=bf16_values, other=bf16_values)
def test_merged_counts_are_those_of_both_together(values: NDArray[Any], other: NDArray[Any]) -> None:
    both = group(np.concatenate([values, other]))
    found = merged([group(values), group(other)])
    assert found.values.tolist() == both.values.tolist()
    assert found.counts.tolist() == both.counts.tolist()


@QUIET
@given(values=bf16_values, percent=st.floats(0.01, 100))
def test_a_percentile_is_numpys_inverted_cdf(values: NDArray[Any], percent: float) -> None:
    expected = np.percentile(np.abs(values.astype(np.float64)), percent, method="inverted_cdf")
    assert group(values).percentile(percent) == expected


# --- costs


@QUIET
@given(values=bf16_values, scale=st.sampled_from(ALL_BF16_SCALES[2000:].tolist()))
def test_costs_are_those_of_the_oracle(values: NDArray[Any], scale: float) -> None:
    cost = scale_cost(group(values), [scale])
    x = np.abs(values.astype(np.float64))
    error = (x - restored(x, scale)) ** 2
    y = x.astype(np.float32) / np.float32(scale)
    assert cost.num_out_of_range[0] == (y > 448).sum()
    assert cost.num_clipped[0] == (y > 464).sum()
    flushed = (x > 0) & (restored(x, scale) == 0)
    assert cost.num_flushed[0] == flushed.sum()
    assert cost.sum_sq_signal == pytest.approx((x**2).sum(), rel=1e-12)
    assert cost.sum_sq_error[0] == pytest.approx(error.sum(), rel=1e-9, abs=1e-30)
    assert cost.sum_sq_clip_error[0] == pytest.approx(error[y > 464].sum(), rel=1e-9, abs=1e-30)
    assert cost.sum_sq_flush_error[0] == pytest.approx(error[flushed].sum(), rel=1e-9, abs=1e-30)


def test_the_formats_magnitudes_are_those_of_the_oracle() -> None:
    assert e4m3fn_magnitudes().tolist() == GRIDS["e4m3fn"].values.tolist()
    assert NEXT_VALUE["e4m3fn"] == 480


@QUIET
@given(values=bf16_values)
def test_prefix_sums_give_the_errors_of_the_round_trip(values: NDArray[Any]) -> None:
    scales = ALL_BF16_SCALES[2300:5300:41]
    exact = scale_cost(group(values), scales).sum_sq_error
    signal = float((values.astype(np.float64) ** 2).sum())
    assert squared_errors(group(values), scales) == pytest.approx(exact, rel=1e-6, abs=1e-12 * signal + 1e-30)


@pytest.mark.parametrize("engine", ["vllm-cuda", "vllm-cpu", "sglang"])
@QUIET
@given(values=bf16_values)
def test_errors_alone_are_those_of_the_full_costs(engine: str, values: NDArray[Any]) -> None:
    scales = ALL_BF16_SCALES[2300:5300:41]
    full = scale_cost(group(values), scales, engine=engine).sum_sq_error
    assert round_trip_errors(group(values), scales, engine=engine) == pytest.approx(full, rel=1e-12)


# --- the search


@QUIET
@given(values=bf16_values.filter(lambda x: (x != 0).any()))
def test_no_bfloat16_scale_has_a_smaller_error_than_the_one_found(values: NDArray[Any]) -> None:
    found = least_error_scale(group(values))
    best = scale_cost(group(values), ALL_BF16_SCALES).sum_sq_error.min()
    assert scale_cost(group(values), [found]).sum_sq_error[0] <= best * ROUNDING
    assert float(nearest_bfloat16([found])[0]) == found


@QUIET
@given(
    values=bf16_values.filter(lambda x: (x != 0).any()),
    percent=st.floats(0.1, 100),
    engine=st.sampled_from(["vllm-cuda", "vllm-cpu", "sglang"]),
)
def test_mse_never_has_a_larger_error_than_absmax_or_any_percentile(
    values: NDArray[Any], percent: float, engine: str
) -> None:
    counted = group(values)
    by_mse = scale_by(Recipe("mse", engine=engine), counted)
    others = [scale_by(Recipe(), counted), scale_by(Recipe("percentile", percent), counted)]
    errors = scale_cost(counted, [by_mse, *others], engine=engine).sum_sq_error
    assert errors[0] <= errors[1:].min() * ROUNDING


@QUIET
@given(values=bf16_values.filter(lambda x: (x != 0).any()))
def test_no_power_of_two_has_a_smaller_error_than_the_one_found(values: NDArray[Any]) -> None:
    found = least_error_scale(group(values), power_of_two=True)
    assert np.log2(found) == round(np.log2(found))
    powers = np.exp2(np.arange(-31.0, 12))
    best = scale_cost(group(values), powers).sum_sq_error.min()
    assert scale_cost(group(values), [found]).sum_sq_error[0] <= best * ROUNDING


def test_the_search_finds_the_least_error_on_a_heavy_tail_where_clipping_pays() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=20_000), [40.0]]).astype(ml_dtypes.bfloat16).astype(np.float32)
    wide = np.full(3, 1e-3, dtype=np.float32)
    counted = group(np.concatenate([values, wide]))
    found = least_error_scale(counted)
    errors = [oracle_error(np.concatenate([values, wide]), s) for s in (found, 40 / 448, 4.5 / 448)]
    assert errors[0] <= min(errors)


@pytest.mark.parametrize("amax", [1e-6, 0.3, 447.9, 448.0, 449.0, 1e5])
def test_the_scale_without_clipping_is_the_smallest_bfloat16_that_covers(amax: float) -> None:
    scale = no_clip_scale(amax)
    below = float(((np.array([scale], np.float32).view(np.uint32) - 0x10000).view(np.float32))[0])
    assert scale * 448 >= amax > below * 448


def test_a_group_of_zeros_has_no_best_scale_and_gets_one() -> None:
    zeros = group(np.zeros(5))
    with pytest.raises(ValueError, match="no value other than 0"):
        least_error_scale(zeros)
    assert {scale_by(recipe, zeros) for recipe in (Recipe(), Recipe("mse"), Recipe("percentile", 50))} == {
        1.0
    }


# --- recipes


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Recipe(), 1.0),
        (Recipe(headroom=2), 2.0),
        (Recipe("percentile", 50), 0.25),
        (Recipe("percentile", 100), 1.0),
        (Recipe("percentile", 50, headroom=3, power_of_two=True), 1.0),
        (Recipe(power_of_two=True), 1.0),
        (Recipe(headroom=1.01, power_of_two=True), 2.0),
        (Recipe(headroom=1.001), 1.0),
    ],
)  # fmt: skip
def test_a_recipe_gives_the_scale_computed_by_hand(recipe: Recipe, expected: float) -> None:
    assert scale_by(recipe, group(np.array([112.0, -112.0, 448.0, -8.0]))) == expected
