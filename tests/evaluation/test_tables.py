"""Rows of a run at the edges: largest values, cells without a finite one, zeros, missing positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.replayed_trace import GIVEN, make_tensors, make_trace, rows_of

from kvtrace.candidates import Bf16, GivenScales, ServingSetup
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.evaluation.request import Method
    from kvtrace.trace.reader import Trace


def trace_of(
    folder: Path, values: NDArray[Any], positions: list[int], *, dtype: str = "bfloat16", **fields: Any
) -> Trace:
    """One request whose K and V are `values`, [token, 1, head_dim]. fields: of its record."""
    path = fabricate_trace(
        folder / "t.kvtrace",
        {(0, tensor): values for tensor in "kv"},
        dtype=dtype,
        request_of_row=[0] * len(positions),
        position_of_row=positions,
        requests=[request(0, prompt_tokens=max(positions) + 1, **fields)],
    )
    return open_trace(path)


@pytest.mark.parametrize(
    ("dtype", "largest"), [("bfloat16", (2 - 2.0**-7) * 2.0**127), ("float16", (2 - 2.0**-10) * 2.0**15)]
)
def test_the_largest_finite_magnitude_is_counted_and_inf_is_not(
    tmp_path: Path, dtype: str, largest: float
) -> None:
    trace = trace_of(tmp_path, np.array([[[largest, -largest, np.inf, np.nan]]]), [0], dtype=dtype)
    run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
    magnitudes = [(row["tensor"], row["magnitude"], row["num_values"]) for row in rows_of(run, "magnitudes")]
    assert sorted(magnitudes) == [("k", largest, 2), ("v", largest, 2)]
    cells = [(row["max_abs"], row["num_values"], row["num_nonfinite"]) for row in rows_of(run, "cells")]
    assert cells == [(largest, 2, 2)] * 2


@pytest.mark.parametrize("method", ["profile", "direct"])
def test_a_cell_without_a_finite_value_has_no_maximum(tmp_path: Path, method: Method) -> None:
    values = np.ones((2, 1, 4))
    values[1] = [np.nan, np.inf, -np.inf, np.nan]
    trace = trace_of(tmp_path, values, [0, 2])  # octaves 0 and 1
    found = {
        (row["tensor"], row["position_octave"]): (row["max_abs"], row["num_values"], row["num_nonfinite"])
        for row in rows_of(replay(ReplayRequest([trace], [Bf16()], method=method), tmp_path / "run"), "cells")
    }
    expected = {0: (1.0, 4, 0), 1: (None, 0, 4)}
    assert found == {(tensor, octave): cell for tensor in "kv" for octave, cell in expected.items()}


def test_zeros_are_in_range_and_not_flushed_at_a_scale_whose_reciprocal_is_inf(tmp_path: Path) -> None:
    # vLLM on a CPU multiplies by 1 / scale: 1e39 is inf in float32, 0 · inf is NaN, and 1 · inf is clipped.
    values = np.zeros((2, 1, 4))
    values[1, 0, :2] = [1.0, -1.0]
    trace = trace_of(tmp_path, values, [0, 1])
    tiny = GivenScales("tiny", {(0, 0, tensor): 1e-39 for tensor in "kv"}, ServingSetup("vllm-cpu"))
    run = replay(ReplayRequest([trace], [tiny], method="verify"), tmp_path / "run")
    names = ("num_values", "num_out_of_range", "num_clipped", "num_flushed")
    assert [tuple(row[name] for name in names) for row in rows_of(run, "cells")] == [(8, 2, 2, 0)] * 2


def test_missing_positions_are_counted_one_by_one(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, np.ones((4, 1, 4)), [0, 1, 5, 9], missing=((2, 5), (6, 9)))
    run = replay(ReplayRequest([trace], [Bf16()]), tmp_path / "run")
    assert [(row["num_rows"], row["num_missing"]) for row in rows_of(run, "requests")] == [(4, 3 + 3)]


@pytest.mark.parametrize(("fp8_format", "largest"), [("e4m3fn", 448.0), ("e5m2", 57344.0)])
def test_a_scale_covers_its_formats_maximum_times_itself(
    tmp_path: Path, fp8_format: str, largest: float
) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    run = replay(
        ReplayRequest([trace], [GivenScales("given", GIVEN, ServingSetup("vllm-cuda", fp8_format))]),
        tmp_path / "run",
    )
    covered = {
        (row["layer"], row["kv_head"], row["tensor"]): row["covered_amax"] for row in rows_of(run, "scales")
    }
    assert covered == {key: np.float32(scale) * np.float32(largest) for key, scale in GIVEN.items()}


def test_a_run_says_what_its_layers_are_and_what_rounding_alone_leaves(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, np.ones((2, 1, 4)), [0, 1], dtype="float16")
    candidates = [
        Bf16(),
        GivenScales("near", GIVEN, ServingSetup("vllm-cuda")),
        GivenScales("down", GIVEN, ServingSetup("vllm-cpu")),
        GivenScales("coarse", GIVEN, ServingSetup("vllm-cuda", format="e5m2")),
    ]
    run = replay(ReplayRequest([trace], candidates), tmp_path / "run")
    (layer,) = rows_of(run, "layers")
    captured = trace.layers[0]
    assert (layer["source"], layer["layer"], layer["dtype"]) == ("t", 0, "float16")
    assert (layer["num_kv_heads"], layer["head_dim_k"], layer["head_dim_v"]) == (1, 4, 4)
    assert (layer["backend"], layer["kv_cache_dtype"]) == (captured.backend, captured.kv_cache_dtype)
    # A step errs by its square over 12 where it is rounded to the nearest, over 3 where it is cut off, and
    # has twice the width with a mantissa bit less: 6 dB each.
    floors = [row["rounding_floor_db"] for row in rows_of(run, "candidates")]
    near = 10 * np.log10(3 / (2 * np.log(2)) * 64 * 12)
    six = 10 * np.log10(4)
    assert floors == [None, *(pytest.approx(near - loss) for loss in (0, six, six))]
