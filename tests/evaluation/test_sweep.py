"""The sweep says what a replay at those very scales says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.fabricate import fabricate_trace, request

from kvtrace.candidates import Bf16, GivenScales, OnlineScales, ServingSetup
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace

HEADS, TOKENS = 3, 40
SUMS = ("num_values", "num_clipped", "num_flushed", "sum_sq_signal", "sum_sq_error", "sum_sq_clip_error")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    random = np.random.default_rng(3)
    tensors = {(0, t): random.standard_t(2, (TOKENS, HEADS, 8)).astype(np.float32) for t in "kv"}
    tensors[0, "k"][:, 2] = 0.0
    tensors[0, "v"][0, 0, :2] = [np.nan, np.inf]
    return open_trace(
        fabricate_trace(
            tmp_path / "day.kvtrace",
            tensors,
            requests=[request(0, prompt_tokens=30, output_tokens=10)],
            request_of_row=[0] * TOKENS,
            position_of_row=[*range(TOKENS)],
        )
    )


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(run / f"{table}.parquet").to_pylist()  # type: ignore[no-any-return]


def ones() -> dict[tuple[int, int, str], float]:
    return {(0, head, tensor): 1.0 for head in range(HEADS) for tensor in "kv"}


@pytest.mark.parametrize(
    ("engine", "fp8_format", "largest"),
    [("vllm-cuda", "e4m3fn", 448.0), ("vllm-cpu", "e5m2", 57344.0)],
)
def test_a_sweep_gives_what_candidates_with_its_scales_give(
    trace: Trace, tmp_path: Path, engine: str, fp8_format: str, largest: float
) -> None:
    setup = ServingSetup(engine, fp8_format)
    first = replay(
        ReplayRequest([trace], [Bf16(), GivenScales("one", ones(), setup)], device="cpu"), tmp_path / "first"
    )
    swept = rows(first, "sweep")
    amax = {(r["kv_head"], r["tensor"]): 0.0 for r in swept}
    for cell in rows(first, "cells"):
        key = (cell["kv_head"], cell["tensor"])
        if key in amax:
            amax[key] = max(amax[key], cell["max_abs"])
    assert {(r["engine"], r["format"]) for r in swept} == {(engine, fp8_format)}
    for k in (-4.0, -0.5, 0.0, 12.0):
        at = {(r["kv_head"], r["tensor"]): r for r in swept if r["log2_multiple"] == k}
        assert {key: r["scale"] for key, r in at.items()} == {
            key: np.float32(2.0**k * value / largest) for key, value in amax.items()
        }
        scales = ones() | {(0, *key): r["scale"] for key, r in at.items()}
        run = replay(
            ReplayRequest([trace], [GivenScales("swept", scales, setup)], device="cpu"), tmp_path / f"at{k}"
        )
        cells = rows(run, "cells")
        for key, row in at.items():
            own = [cell for cell in cells if (cell["kv_head"], cell["tensor"]) == key]
            for name in SUMS:
                assert row[name] == pytest.approx(sum(cell[name] for cell in own), rel=1e-9), (k, key, name)


def test_a_head_of_zeros_has_no_scale_that_just_covers_it(trace: Trace, tmp_path: Path) -> None:
    run = replay(
        ReplayRequest([trace], [GivenScales("one", ones(), ServingSetup())], device="cpu"), tmp_path / "run"
    )
    found = {(r["kv_head"], r["tensor"]) for r in rows(run, "sweep")}
    assert found == {(0, "k"), (1, "k"), (0, "v"), (1, "v"), (2, "v")}


@pytest.mark.filterwarnings("error")
def test_a_scale_that_covers_more_than_float32_holds_has_no_row(tmp_path: Path) -> None:
    largest = 2.0**126  # 4 × that, and what its neighbours round to, is no float32
    path = fabricate_trace(
        tmp_path / "huge.kvtrace",
        {(0, tensor): np.full((2, 1, 8), largest) for tensor in "kv"},
        request_of_row=[0, 0],
        position_of_row=[0, 1],
        requests=[request(0, prompt_tokens=2)],
    )
    given = GivenScales("one", {(0, 0, tensor): 1.0 for tensor in "kv"}, ServingSetup())
    swept = rows(replay(ReplayRequest([open_trace(path)], [given], device="cpu"), tmp_path / "run"), "sweep")
    covered = {r["log2_multiple"]: r["covered_amax"] for r in swept if r["tensor"] == "k"}
    assert sorted(covered) == [step / 2 for step in range(-8, 4)]
    for multiple, value in covered.items():
        assert value == pytest.approx(2.0**multiple * largest, rel=1e-6)


def test_a_sweep_is_in_the_format_of_the_first_candidate_with_static_scales(
    trace: Trace, tmp_path: Path
) -> None:
    setups = [ServingSetup("vllm-cuda", "e5m2"), ServingSetup("vllm-cpu", "e4m3fn")]
    static = [GivenScales(setup.engine, ones(), setup) for setup in setups]
    run = replay(
        ReplayRequest([trace], [Bf16(), OnlineScales("int8-per-token-head"), *static], device="cpu"),
        tmp_path / "run",
    )
    swept = rows(run, "sweep")
    assert {(r["engine"], r["format"]) for r in swept} == {("vllm-cuda", "e5m2")}
    for r in swept:
        assert r["covered_amax"] == np.float32(r["scale"]) * np.float32(57344)  # e5m2's maximum


def test_a_replay_without_counts_or_static_scales_has_an_empty_sweep(trace: Trace, tmp_path: Path) -> None:
    given = [GivenScales("one", ones(), ServingSetup())]
    direct = replay(ReplayRequest([trace], given, method="direct", device="cpu"), tmp_path / "direct")
    unquantized = replay(ReplayRequest([trace], [Bf16()], device="cpu"), tmp_path / "bf16")
    assert rows(direct, "sweep") == rows(unquantized, "sweep") == []
