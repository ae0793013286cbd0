"""Outlier channels: which they are, and that their values are counted apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.counted_trace import CPU, HEAD_DIM, HEADS, ROWS, make_trace, normal_tensors
from support.fabricate import bits

from kvtrace.errors import IntegrityError
from kvtrace.profile.build import profile_tensors
from kvtrace.profile.outlier_channels import outlier_channels
from kvtrace.profile.own_seal import own_seal
from kvtrace.profile.ready import ready_profile
from kvtrace.profile.store import verify_profiles, write_profile
from kvtrace.profile.validate import problem_of_arrays, problem_of_record
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.format import seal
from kvtrace.trace.profile_format import GROUPS_DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kvtrace.profile.counts import TensorProfile
    from kvtrace.trace.reader import Trace

OUTLIERS = ((1, 6), (), (3,))
"""Of layer 0's K, by head."""


def with_outliers() -> dict[tuple[int, str], Any]:
    tensors = normal_tensors()
    for head, channels in enumerate(OUTLIERS):
        for channel in channels:
            tensors[0, "k"][:, head, channel] += 400
    return tensors


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return make_trace(tmp_path / "t.kvtrace", with_outliers())


def k_of(trace: Trace, device: str = CPU, **options: Any) -> TensorProfile:
    tensors = profile_tensors(trace, find_cells(trace), device, **options)
    return next(one for one in tensors if (one.record.layer, one.record.tensor) == (0, "k"))


def spread(*of_channel: float) -> np.ndarray:
    """Two rows of one head: each channel is ± its spread, so that its Σ x² is twice the square."""
    rows = np.array([of_channel, [-one for one in of_channel]], np.float32)[:, None]
    return bits(rows, "bfloat16")


def test_a_channel_is_an_outlier_from_more_than_8_times_the_median_spread_on() -> None:
    assert outlier_channels(spread(1, 1, 1, 16), "bfloat16") == ((3,),)
    assert outlier_channels(spread(1, 1, 1, 8), "bfloat16") == ((),)  # 64 times the energy, not more


def test_channels_that_hold_less_than_half_of_the_energy_hide_nothing() -> None:
    """One of 16² among 300 of 1: 256 of 556; among 200: 256 of 456."""
    assert outlier_channels(spread(*[1] * 300, 16), "bfloat16") == ((),)
    assert outlier_channels(spread(*[1] * 200, 16), "bfloat16") == ((200,),)


def test_nan_and_inf_make_no_outlier() -> None:
    values = spread(1, 1, 1, 1)
    values[0, 0, 2], values[1, 0, 2] = 0x7F80, 0x7FC0
    assert outlier_channels(values, "bfloat16") == ((),)


def test_a_head_of_zeros_has_none() -> None:
    assert outlier_channels(spread(0, 0, 0, 0), "bfloat16") == ((),)


def test_the_values_of_outlier_channels_are_counted_apart_and_with_all_others(trace: Trace) -> None:
    counted, cells = k_of(trace), find_cells(trace)
    assert counted.record.outlier_channels == OUTLIERS
    assert counted.outliers is not None
    codes = bits(with_outliers()[0, "k"], "bfloat16") & 0x7FFF
    for head, channels in enumerate(OUTLIERS):
        for cell in range(len(cells)):
            segment = head * len(cells) + cell
            entries = slice(*counted.outliers.start[segment : segment + 2])
            own = codes[cells.of_token == cell, head][:, list(channels)]
            expected = np.unique(own, return_counts=True)
            assert counted.outliers.code[entries].tolist() == expected[0].tolist()
            assert counted.outliers.count[entries].tolist() == expected[1].tolist()
    assert counted.count.sum() == ROWS * HEADS * HEAD_DIM


@pytest.mark.parametrize("options", [{"memory_bytes": 1}, {"device": "numpy"}], ids=["in parts", "numpy"])
def test_they_are_the_same_however_they_are_counted(trace: Trace, options: dict[str, Any]) -> None:
    """With little memory a tensor is counted chunk by chunk."""
    one, other = k_of(trace), k_of(trace, **options)
    assert one.record == other.record
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])


def test_a_tensor_without_them_has_no_arrays_of_them(tmp_path: Path) -> None:
    counted = k_of(make_trace(tmp_path / "t.kvtrace"))
    assert counted.record.outlier_channels == ((), (), ())
    assert set(counted.arrays) == {"code", "count", "start", "absmax"}


def test_intervals_are_not_made_of_them(trace: Trace) -> None:
    for counted in profile_tensors(trace, find_group_cells(trace), CPU):
        assert counted.record.outlier_channels is None
    with ready_profile(trace, find_group_cells(trace), CPU, directory=GROUPS_DIRECTORY):
        pass
    with ready_profile(trace, find_group_cells(trace), CPU, directory=GROUPS_DIRECTORY) as ready:
        assert not ready.were_read


def test_a_kept_profile_holds_them_and_is_verified(trace: Trace) -> None:
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        (kept,) = [one for one in ready.profile.tensors() if one.outliers]
    assert kept.record.outlier_channels == OUTLIERS
    assert verify_profiles(trace) == {"profile": "made here"}


def test_a_profile_of_before_1_3_is_counted_again(trace: Trace) -> None:
    cells = find_cells(trace)
    old = [
        replace(one, outliers=None, record=one.record.model_copy(update=NOT_LOOKED_FOR))
        for one in profile_tensors(trace, cells, CPU)
    ]
    write_profile(trace, cells, old, trace.path / "profile")
    with ready_profile(trace, cells, CPU) as ready:
        assert ready.were_read
    with ready_profile(trace, cells, CPU) as ready:
        assert not ready.were_read
        assert all(one.outlier_channels is not None for one in ready.profile.record.tensors)


NOT_LOOKED_FOR = {"outlier_channels": None, "num_outlier_entries": 0}


def test_verification_finds_channels_that_are_others_in_the_tensors(trace: Trace) -> None:
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        record = ready.profile.record
    tensors = [
        one.model_copy(update={"outlier_channels": ((2, 6), (), (3,))}) if one.num_outlier_entries else one
        for one in record.tensors
    ]
    record = record.model_copy(update={"tensors": tuple(tensors)})
    record = record.model_copy(update={"seal": own_seal(record, "profile")})
    (trace.path / "profile" / "profile.json").write_text(seal(record))
    with pytest.raises(IntegrityError, match=r"profile\.json.* outlier channels of layer 0 k are others"):
        verify_profiles(trace)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"outlier_channels": ((1, 6), ())}, "outlier channels of 2 KV heads, expected 3"),
        ({"outlier_channels": ((6, 1), (), (3,))}, "KV head 0, expected at most 4 of 0 to 7, ascending"),
        ({"outlier_channels": ((1, 8), (), (3,))}, "impossible outlier channels in KV head 0"),
        ({"outlier_channels": ((0, 1, 2, 3, 4), (), ())}, "impossible outlier channels in KV head 0"),
        ({"num_outlier_entries": -1}, "entries of outlier channels, expected 0 to 180"),
        ({"num_outlier_entries": 181}, "entries of outlier channels, expected 0 to 180"),
    ],
)
def test_a_record_with_impossible_outlier_channels_is_refused(
    trace: Trace, changed: dict[str, Any], why: str
) -> None:
    """180: 60 tokens in each of 3 channels."""
    with ready_profile(trace, find_cells(trace), CPU) as ready:
        record = ready.profile.record
    assert problem_of_record(record, trace) is None
    forged = [
        one.model_copy(update=changed) if (one.layer, one.tensor) == (0, "k") else one
        for one in record.tensors
    ]
    problem = problem_of_record(record.model_copy(update={"tensors": tuple(forged)}), trace)
    assert problem is not None
    assert why in problem


@pytest.mark.parametrize(
    ("name", "places", "value", "named"),
    [
        ("start", slice(0, 1), 1, "outlier_start"),
        ("start", slice(1, 2), 10**9, "outlier_start"),
        ("start", slice(-1, None), 10**9, "outlier_start"),
        ("code", slice(0, 1), 0xFFFF, "outlier_code"),
        ("code", slice(0, 1), 0, "outlier_code"),  # no value is 0
        ("code", slice(None), 0x43C8, "outlier_code"),
        ("count", slice(0, 1), 0, "outlier_count"),
        ("count", slice(0, 1), 10**6, "outlier_count"),
    ],
)
def test_impossible_counts_of_outlier_channels_are_refused(
    trace: Trace, name: str, places: slice, value: int, named: str
) -> None:
    counted = k_of(trace)
    assert counted.outliers is not None
    assert problem_of_arrays(counted) is None
    array = getattr(counted.outliers, name).copy()
    array[places] = value
    problem = problem_of_arrays(replace(counted, outliers=replace(counted.outliers, **{name: array})))
    assert problem is not None
    assert problem[0] == named
