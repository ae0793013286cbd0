from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from fuzz.odd import sealed
from support.fabricate import bits, fabricate_trace, request
from support.fp8_oracle import values_of_bits
from support.online_oracle import FP8, INT8, restored_by_rule
from support.replayed_trace import found_cells, make_tensors, make_trace, rows_of

from kvtrace.candidates import Bf16, OnlineScales
from kvtrace.errors import InputError
from kvtrace.evaluation import ReplayRequest, coded_block, replay
from kvtrace.formats import find_format
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.evaluation.request import Method
    from kvtrace.trace.reader import Trace


@pytest.mark.parametrize("policy", [FP8, INT8])
def test_values_are_those_of_the_rule(policy: str) -> None:
    x = np.random.default_rng(0).standard_t(3, (300, 16)).astype(np.float32)
    x[0] = 0.0
    x[1] *= np.float32(1e-9)  # the smallest scale takes over
    x[2, ::2] = [12.7, -12.7, 0.05, -0.05, 0.15, 0.25, -0.35, 0.0]
    stored = values_of_bits(bits(x), "bfloat16")
    found = find_format(policy).k.round_trip(torch.from_numpy(stored).bfloat16()).numpy()
    np.testing.assert_array_equal(found, [restored_by_rule(vector, policy) for vector in stored])


@pytest.mark.parametrize("policy", [FP8, INT8])
@pytest.mark.parametrize("method", ["profile", "direct"])
def test_the_runs_sums_are_those_of_the_rule(tmp_path: Path, policy: str, method: Any) -> None:
    tensors = make_tensors()
    trace = make_trace(tmp_path / "t.kvtrace", tensors, rows_per_chunk=16)
    run = replay(ReplayRequest([trace], [Bf16(), OnlineScales(policy)], method=method), tmp_path / "run")
    found = found_cells(run, policy)
    for (layer, tensor), values in tensors.items():
        stored = values_of_bits(bits(values), "bfloat16").astype(np.float64)
        finite = np.isfinite(stored)
        for head in range(values.shape[1]):
            restored = np.stack([restored_by_rule(v.astype(np.float32), policy) for v in stored[:, head]])
            squares = np.where(finite[:, head], (stored[:, head] - restored) ** 2, 0)
            flushed = finite[:, head] & (stored[:, head] != 0) & (restored == 0)
            own = [sums for key, sums in found.items() if key[:3] == (layer, head, tensor)]
            assert sum(sums["sum_sq_error"] for sums in own) == pytest.approx(squares.sum(), rel=1e-12)
            assert sum(sums["num_flushed"] for sums in own) == flushed.sum()
            absent = ("num_out_of_range", "num_clipped", "sum_sq_clip_error")
            assert all(sums[name] is None for sums in own for name in absent)


def test_the_bytes_of_its_scales_are_told(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())  # head_dim 16: 4 bytes beside 16 codes
    (candidate,) = rows_of(
        replay(ReplayRequest([trace], [OnlineScales(FP8)]), tmp_path / "run"), "candidates"
    )
    assert [candidate[name] for name in ("kind", "engine", "format", "granularity")] == [
        "online", "vllm", "fp8_per_token_head", "token_head"
    ]  # fmt: skip
    # 2 layers of 3 heads, K and V of 16 bytes and 4 each.
    assert "240 bytes a token in the captured layers, bf16 takes 1.60 ×" in candidate["note"]
    assert candidate["hypothetical"]


def test_equal_counts_and_maxima_can_have_different_errors(tmp_path: Path) -> None:
    # The reason for a pass of its own: both traces have one profile.
    errors = []
    for name, vectors in {"a": [(8, 1.1), (5, 3.3)], "b": [(8, 3.3), (5, 1.1)]}.items():
        tensors = {(0, t): np.array(vectors, np.float32)[:, None, :] for t in "kv"}
        path = fabricate_trace(
            tmp_path / f"{name}.kvtrace",
            tensors,
            request_of_row=[0, 0],
            position_of_row=[2, 3],
            requests=[request(0, prompt_tokens=4)],
        )
        run = replay(ReplayRequest([open_trace(path)], [OnlineScales(FP8)]), tmp_path / name)
        ((_, sums),) = [(k, s) for k, s in found_cells(run, FP8).items() if k[2] == "k"]
        errors.append(sums["sum_sq_error"])
    assert errors[0] != pytest.approx(errors[1], rel=1e-3)


def test_the_pass_is_made_once_for_a_trace(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    first = replay(ReplayRequest([trace], [OnlineScales(INT8)]), tmp_path / "run1")
    calls: list[int] = []
    second = replay(
        ReplayRequest([trace], [OnlineScales(INT8)]),
        tmp_path / "run2",
        progress=lambda done, total: calls.append(done),
    )
    assert calls == [], "no block was read"
    assert (first / "cells.parquet").read_bytes() == (second / "cells.parquet").read_bytes()


def online_sums(trace: Trace, out: Path, method: Method = "direct") -> dict[tuple[Any, ...], Any]:
    """Return the sums of both policies, (policy, *cell) → flushed values and squared error.

    A direct replay of a trace without a profile keeps no sums: they are made anew.
    """
    run = replay(ReplayRequest([trace], [OnlineScales(FP8), OnlineScales(INT8)], method=method), out)
    return {
        (policy, *cell): (sums["num_flushed"], sums["sum_sq_error"])
        for policy in (FP8, INT8)
        for cell, sums in found_cells(run, policy).items()
    }


def assert_same(found: dict[tuple[Any, ...], Any], expected: dict[tuple[Any, ...], Any]) -> None:
    assert found.keys() == expected.keys()
    for cell, sums in expected.items():
        assert found[cell] == pytest.approx(sums, rel=1e-12), cell


def test_sums_kept_of_another_trace_are_not_believed(tmp_path: Path) -> None:
    one, other = (make_trace(tmp_path / f"{seed}.kvtrace", make_tensors(seed)) for seed in (0, 1))
    expected = online_sums(other, tmp_path / "expected")
    online_sums(one, tmp_path / "one", method="profile")
    (other.path / "profile").mkdir()
    for kept in (one.path / "profile").glob("format-*.json"):
        shutil.copy(kept, other.path / "profile")
    assert_same(online_sums(other, tmp_path / "other"), expected)


def test_sums_that_another_has_edited_are_made_again_though_their_checksum_is_right(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    expected = online_sums(trace, tmp_path / "expected", method="profile")
    kept_files = list((trace.path / "profile").glob("format-*.json"))
    assert len(kept_files) == 2
    for path in kept_files:
        kept = json.loads(path.read_text())
        kept["tensors"][0]["num_flushed"][0][0] += 1
        path.write_text(sealed(kept))
    assert_same(online_sums(trace, tmp_path / "edited", method="profile"), expected)


def test_a_trace_cut_into_ranks_and_small_chunks_gives_the_same_online_sums(tmp_path: Path) -> None:
    tensors = make_tensors()
    whole = make_trace(tmp_path / "whole.kvtrace", tensors)
    split = make_trace(tmp_path / "split.kvtrace", tensors, ranks=[[0, 2], [1]], rows_per_chunk=7)
    assert_same(online_sums(split, tmp_path / "split"), online_sums(whole, tmp_path / "whole"))


def test_blocks_worked_on_two_rows_at_a_time_give_the_same_online_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = make_trace(tmp_path / "t.kvtrace", make_tensors())
    at_once = online_sums(trace, tmp_path / "at once")
    monkeypatch.setattr(coded_block, "_VALUES_AT_ONCE", 100)  # a row is 3 heads · 16 values
    assert_same(online_sums(trace, tmp_path / "in parts"), at_once)


def test_an_unknown_policy_is_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"unknown.*fp8_per_token_head, int8_per_token_head"):
        OnlineScales("fp4-per-token")
