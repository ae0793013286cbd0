"""What is captured of vLLM's V2 model runner is what is captured of V1, bit for bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.vllm_engines import connector, only_trace, run_offline
from support.vllm_prompts import CHAT, GERMAN, TOGETHER, labelled
from support.vllm_v2 import v2_environment

if TYPE_CHECKING:
    from pathlib import Path

    from support.vllm_engines import Captured

ENGINE: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "seed": 0,
    "enforce_eager": True,
}
IN_CHUNKS = labelled("One step takes sixty-four tokens of a prompt at most. " * 16, "long", "long-0")
ROUNDS = [[CHAT], [IN_CHUNKS], [GERMAN]]
"""Of one request: the batches, and so the last bit of every value, do not depend on timing."""


def capture(model: Path, folder: Path, rounds: list[Any], *, engine: dict[str, Any], **env: str) -> Captured:
    asked = {**ENGINE, **engine, "kv_transfer_config": connector(folder / "traces", position_stride=1)}
    finished = run_offline(folder, model, asked, rounds, **env)
    assert finished.returncode == 0, finished.stderr[-3000:]
    out = json.loads((folder / "out.json").read_text())
    return only_trace(folder / "traces"), out["rounds"], out


@pytest.fixture(scope="module")
def of_v1(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return capture(model, tmp_path_factory.mktemp("v1"), ROUNDS, engine={})


@pytest.fixture(scope="module")
def of_v2(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    rounds = [*ROUNDS, TOGETHER]
    return capture(model, tmp_path_factory.mktemp("v2"), rounds, engine={}, **v2_environment())


def same_rows(one: Captured, other: Captured, num_requests: int) -> None:
    (trace, outputs, _), (reference, expected, _) = one, other
    assert [got["output"] for round_ in outputs[:num_requests] for got in round_] == [
        got["output"] for round_ in expected[:num_requests] for got in round_
    ]
    for request in range(num_requests):
        rows, wanted = trace.rows_of(request), reference.rows_of(request)
        assert len(rows) == len(wanted) == trace.requests[request]["computed_tokens"]
        for layer in trace.layer_indices:
            for tensor in "kv":
                mine, theirs = (t.values(layer, tensor) for t in (trace, reference))
                np.testing.assert_array_equal(mine[rows], theirs[wanted])


@pytest.mark.vllm
def test_the_runners_are_those_that_are_meant(of_v1: Captured, of_v2: Captured) -> None:
    assert ".gpu." not in of_v1[2]["worker"]["runner"]
    assert of_v2[2]["worker"]["runner"].startswith("vllm.v1.worker.cpu.model_runner.")


@pytest.mark.vllm
def test_every_value_is_that_of_v1(of_v1: Captured, of_v2: Captured) -> None:
    same_rows(of_v2, of_v1, len(ROUNDS))


@pytest.mark.vllm
def test_of_a_sorted_batch_every_computed_position_is_stored_exactly_once(of_v2: Captured) -> None:
    trace, rounds, _ = of_v2
    assert len(trace.requests) == sum(len(outputs) for outputs in rounds)
    assert len(trace.tokens) == len(set(trace.tokens))
    assert set(trace.tokens) == {(r, p) for r in trace.requests for p in trace.expected(r)}
    assert trace.dropped == []
    assert trace.commit["closed"]


@pytest.mark.vllm_full
def test_asynchronous_scheduling_changes_nothing(model: Path, of_v1: Captured, tmp_path: Path) -> None:
    environment = v2_environment(asynchronous=True)
    found = capture(model, tmp_path, ROUNDS, engine={"async_scheduling": True}, **environment)
    assert found[2]["worker"]["async_scheduling"]
    same_rows(found, of_v1, len(ROUNDS))
