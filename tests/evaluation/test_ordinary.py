"""Sums over ordinary channels, against a round trip of each of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.counted_trace import HEADS, make_trace, normal_tensors

from kvtrace.candidates import Bf16, GivenScales, OnlineScales
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.query import connect_with_views
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from pathlib import Path

CHANNELS = [2, 5]
"""Outlier channels of layer 0's K in KV head 1, and of no other head."""
SCALE = 1.5


@pytest.fixture
def tensors() -> dict[tuple[int, str], Any]:
    made = {key: bfloat16(values) for key, values in normal_tensors().items()}
    made[0, "k"][:, 1, CHANNELS] = bfloat16(made[0, "k"][:, 1, CHANNELS] + 700)
    made[0, "k"][3, 1, 0] = np.nan
    return made


def bfloat16(values: Any) -> Any:
    return torch.tensor(values).bfloat16().float().numpy()


def run_of(tmp_path: Path, tensors: dict[tuple[int, str], Any], method: str = "profile") -> Path:
    trace = make_trace(tmp_path / "t.kvtrace", tensors)
    keys = [(layer, head, tensor) for layer in range(2) for head in range(HEADS) for tensor in "kv"]
    candidates = [
        Bf16(),
        GivenScales("given", dict.fromkeys(keys, SCALE)),
        OnlineScales("fp8-per-token-head"),
    ]
    request = ReplayRequest([trace], candidates, device="cpu", method=method)  # type: ignore[arg-type]
    return replay(request, tmp_path / "run")


def test_the_sums_are_those_of_the_ordinary_channels_values(
    tmp_path: Path, tensors: dict[tuple[int, str], Any]
) -> None:
    found = pq.read_table(run_of(tmp_path, tensors) / "ordinary_channels.parquet").to_pylist()
    assert {(row["candidate"], row["layer"], row["kv_head"], row["tensor"]) for row in found} == {
        ("given", 0, 1, "k")
    }
    x = np.delete(tensors[0, "k"][:, 1], CHANNELS, axis=1).astype(np.float64)
    finite = np.isfinite(x)
    back = torch.tensor(x / SCALE).clamp(-448, 448).to(torch.float8_e4m3fn).double().numpy() * SCALE
    for workload, rows in (("chat", slice(0, 40)), ("code", slice(40, 60))):
        (row,) = [one for one in found if one["workload"] == workload]
        kept = finite[rows]
        assert row["channel_count"] == 6
        assert row["num_values"] == kept.sum()
        assert row["num_clipped"] == 0
        assert row["num_flushed"] == ((back[rows] == 0) & (x[rows] != 0) & kept).sum()
        assert row["sum_sq_signal"] == pytest.approx((x[rows][kept] ** 2).sum(), rel=1e-12)
        assert row["sum_sq_error"] == pytest.approx(((x - back)[rows][kept] ** 2).sum(), rel=1e-9)
        assert row["max_abs"] == np.abs(x[rows][kept]).max()


def test_both_kinds_of_channels_are_shown(tmp_path: Path, tensors: dict[tuple[int, str], Any]) -> None:
    connection = connect_with_views(open_run(run_of(tmp_path, tensors)))
    sql = "SELECT ordinary_sqnr_db, outlier_sqnr_db, outlier_signal_frac FROM channel_classes"
    ((ordinary_db, outlier_db, share),) = connection.execute(sql).fetchall()
    x = tensors[0, "k"][:, 1].astype(np.float64)
    back = torch.tensor(x / SCALE).clamp(-448, 448).to(torch.float8_e4m3fn).double().numpy() * SCALE
    is_outlier = np.isin(np.arange(8), CHANNELS)
    for found, own in ((ordinary_db, ~is_outlier), (outlier_db, is_outlier)):
        signal, error = (np.nansum(one[:, own]) for one in (x**2, (x - back) ** 2))
        assert found == pytest.approx(10 * np.log10(signal / error), rel=1e-9)
    assert share == pytest.approx(np.nansum(x[:, is_outlier] ** 2) / np.nansum(x**2), rel=1e-12)


@pytest.mark.parametrize("method", ["direct", "verify"])
def test_a_direct_replay_tells_no_channels_apart_and_a_verified_one_does(
    tmp_path: Path, tensors: dict[tuple[int, str], Any], method: str
) -> None:
    found = pq.read_table(run_of(tmp_path, tensors, method) / "ordinary_channels.parquet")
    assert bool(found.num_rows) == (method == "verify")


def test_a_trace_without_outlier_channels_has_no_rows(tmp_path: Path) -> None:
    found = pq.read_table(run_of(tmp_path, normal_tensors()) / "ordinary_channels.parquet")
    assert found.num_rows == 0
