"""Several ranks: each stores its heads, a head that two of them hold is stored once, one file is read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.vllm_checkpoints import write_tiny_model
from support.vllm_cpu import MAX_DISTANCE_RATIO
from support.vllm_engines import connector, run_offline
from support.vllm_reference import MergedTrace, distances_from_fp32
from support.vllm_tiny import ENGINE

from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

CORES = sorted(os.sched_getaffinity(0))
BIND = f"{CORES[0]}|{CORES[-1]}"
"""One core a rank."""


def serve(folder: Path, num_kv_heads: int, **extra: Any) -> tuple[Path, list[dict[str, Any]]]:
    """Serve three requests with two ranks; return the trace and what each got."""
    write_tiny_model(folder / "model", "llama", num_kv_heads=num_kv_heads)
    engine = {
        **ENGINE,
        "tensor_parallel_size": 2,
        "kv_transfer_config": connector(folder / "traces", **extra),
    }
    sampling = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
    random = np.random.default_rng(num_kv_heads)
    requests = [
        {"token_ids": random.integers(3, 500, length).tolist(), "sampling": sampling}
        for length in (200, 40, 90)
    ]
    finished = run_offline(folder, folder / "model", engine, [requests], VLLM_CPU_OMP_THREADS_BIND=BIND)
    assert finished.returncode == 0, finished.stderr[-3000:]
    (trace,) = (folder / "traces").glob("*.kvtrace")
    return trace, json.loads((folder / "out.json").read_text())["rounds"][0]


def stored_heads(trace: Path) -> list[list[tuple[int, ...]]]:
    """Return the heads of each captured layer, by rank."""
    return [
        [layer.kv_heads for layer in store.rank.layers if layer.captured] for store in open_trace(trace).ranks
    ]


def check(model: Path, trace: Path, outputs: list[dict[str, Any]]) -> None:
    """Check that every token's every head is there exactly once, and as near to fp32 as bf16 is."""
    summary = summarize(open_trace(trace), verify=True)
    assert summary.num_ranks == 2
    assert summary.closed
    expected = [len(o["prompt"]) + len(o["output"]) - 1 for o in outputs]
    assert summary.num_tokens == summary.completeness.num_expected == sum(expected)
    merged = MergedTrace(trace)
    assert all((counts == 1).all() for counts in merged.num_writes.values())
    distances = distances_from_fp32(model, merged, dict(enumerate(outputs)))
    ratio = distances[..., 0] / distances[..., 1]
    print("captured / bf16 distance from fp32, [layer, k or v]:", np.round(ratio, 3).tolist())
    assert ratio.max() <= MAX_DISTANCE_RATIO


def test_two_ranks_store_a_head_each_and_are_read_as_one(tmp_path: Path) -> None:
    trace, outputs = serve(tmp_path, num_kv_heads=2, position_stride=1)
    assert stored_heads(trace) == [[(0,)] * 3, [(1,)] * 3]
    check(tmp_path / "model", trace, outputs)


@pytest.mark.vllm_full
def test_a_head_that_both_ranks_hold_is_stored_by_the_first_alone(tmp_path: Path) -> None:
    trace, outputs = serve(tmp_path, num_kv_heads=1, position_stride=1)
    assert stored_heads(trace) == [[(0,)] * 3, []]
    check(tmp_path / "model", trace, outputs)


@pytest.mark.vllm_full
def test_both_ranks_sample_the_same_positions(tmp_path: Path) -> None:
    trace, _ = serve(tmp_path, num_kv_heads=2, position_stride=4)
    first, second = (store.rows for store in open_trace(trace).ranks)
    for column in ("request", "position", "step", "sampling_id"):
        assert (first[column] == second[column]).all()
    assert len({record.offset for record in open_trace(trace).requests.values()}) > 1
