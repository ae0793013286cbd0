"""Captured queries and attention outputs of a real model against Hugging Face transformers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.attention_oracle import attention_output
from support.vllm_checkpoints import write_tiny_model
from support.vllm_cpu import MAX_DISTANCE_RATIO
from support.vllm_engines import ONE_PROCESS, connector, only_trace, run_offline
from support.vllm_prompts import ONE_BY_ONE
from support.vllm_reference import queries_and_outputs

from kvtrace.trace.queries import CapturedQueries
from kvtrace.trace.reader import Trace, open_trace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

ENGINE: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "seed": 0,
    "enforce_eager": True,
}
SAME_OUTPUT = 2**-7
"""Relative distance of an engine's output in bf16, which keeps 8 bits, from that of its own Q, K and V."""
CAPTURE: dict[str, Any] = {"queries": "probe", "probe_requests": 1, "probe_positions": 256}


@pytest.fixture(scope="module")
def probed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, list[dict[str, Any]]]:
    """Return a trace with one probe of each workload, and what each request got; the last is no probe."""
    folder = tmp_path_factory.mktemp("probed")
    engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=16, **CAPTURE)}
    finished = run_offline(folder, model, engine, [*ONE_BY_ONE, ONE_BY_ONE[0]])
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "kvtrace: capturing K, V and Q of 30 layers" in finished.stdout + finished.stderr
    out = json.loads((folder / "out.json").read_text())
    return open_trace(only_trace(folder / "traces").path), [outputs[0] for outputs in out["rounds"]]


def test_of_each_probe_every_position_is_kept_and_of_others_the_sample_alone(
    probed: tuple[Trace, list[dict[str, Any]]],
) -> None:
    trace, outputs = probed
    queries = CapturedQueries(trace)
    assert queries.requests == (0, 1, 2, 3)
    for number, output in enumerate(outputs[:4]):
        record = trace.requests[number]
        num_computed = len(output["prompt"]) + len(output["output"]) - 1
        asked = [position for position in record.query_positions if position < num_computed]
        assert queries.query_positions(number).tolist() == asked
        assert any(position >= record.prompt_tokens for position in asked)
        assert queries.key_positions(number).tolist() == list(range(num_computed))
    assert not trace.requests[4].is_probe
    sampled = trace.tokens.position % 16 == [trace.requests[n].offset for n in trace.tokens.request.tolist()]
    assert sampled.all()  # what is kept for attention counts in no table of values
    assert all(not store.dropped for store in (*trace.ranks, *trace.attention.all))


def test_queries_and_outputs_are_as_near_to_fp32_as_a_bf16_forward_is(
    model: Path, probed: tuple[Trace, list[dict[str, Any]]]
) -> None:
    trace, outputs = probed
    queries = CapturedQueries(trace)
    squares = np.zeros((30, 3, 2))
    of_bf16 = np.zeros((30, 2))
    for number, output in enumerate(outputs[:4]):
        token_ids = (output["prompt"] + output["output"])[:-1]
        exact, rounded = (queries_and_outputs(model, token_ids, dtype) for dtype in ("float32", "bfloat16"))
        for layer in range(30):
            (found,) = queries.read(layer, [number])
            assert found.is_dense
            at = found.query_position
            replayed = attention_output(found)
            assert found.o is not None
            pairs = ((found.q, 0), (found.o, 1), (replayed, 1))
            for row, (values, tensor) in enumerate(pairs):
                squares[layer, row, 0] += np.square(values - exact[layer][tensor][at]).sum()
                squares[layer, row, 1] += np.square(
                    rounded[layer][tensor][at] - exact[layer][tensor][at]
                ).sum()
            of_bf16[layer] += np.square(found.o - replayed).sum(), np.square(replayed).sum()
    ratio = np.sqrt(squares[..., 0] / squares[..., 1])
    print("distance from fp32 ÷ that of bf16, worst layer: Q, output, replayed output:", ratio.max(axis=0))
    relative = np.sqrt(of_bf16[:, 0] / of_bf16[:, 1])
    print("engine's output against the replayed one, relative, worst layer:", relative.max())
    # The engine's own output is held to that of its own Q, K and V: against fp32 its kernel on this CPU is up
    # to twice as far as HF's bf16 forward in layer 0, where that is nearly exact.
    assert ratio[:, [0, 2]].max() <= MAX_DISTANCE_RATIO
    assert relative.max() < SAME_OUTPUT


def test_rank_json_says_how_the_layers_attend(probed: tuple[Trace, list[dict[str, Any]]]) -> None:
    trace, _ = probed
    layer = CapturedQueries(trace).layers[29]
    assert layer.query_heads == tuple(range(9))
    assert layer.kv_head_of == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert layer.softmax_scale == pytest.approx(64**-0.5)
    assert (layer.soft_cap, layer.sinks, layer.sliding_window, layer.not_replayable) == (None, None, None, ())


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ({"kind": "llama"}, {"enforce_eager": False}),
        pytest.param({"kind": "llama"}, {"tensor_parallel_size": 2}, marks=pytest.mark.vllm_full),
        pytest.param({"kind": "gemma3"}, {}, marks=pytest.mark.vllm_full),
        pytest.param(
            {"kind": "llama", "num_kv_heads": 1}, {"tensor_parallel_size": 2}, marks=pytest.mark.vllm_full
        ),
    ],
    ids=["compiled", "two ranks", "sliding windows", "two ranks of one KV head"],
)
def test_captured_queries_keys_and_values_give_the_engines_own_output(
    tmp_path: Path, kind: dict[str, Any], engine: dict[str, Any]
) -> None:
    write_tiny_model(tmp_path / "model", **kind)
    extra = {"queries": "probe", "probe_requests": 2, "probe_positions": 64}
    options = {
        **ENGINE,
        "max_model_len": 512,
        "max_num_batched_tokens": 128,
        "skip_tokenizer_init": True,
        "kv_transfer_config": connector(tmp_path / "traces", **extra),
        **engine,
    }
    sampling = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "detokenize": False}
    random = np.random.default_rng(1)
    requests = [{"token_ids": random.integers(3, 500, n).tolist(), "sampling": sampling} for n in (200, 90)]
    environment = ONE_PROCESS if engine.get("enforce_eager") is False else {}
    if "tensor_parallel_size" in engine:
        cores = sorted(os.sched_getaffinity(0))
        environment = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}
    finished = run_offline(tmp_path, tmp_path / "model", options, [requests], **environment)
    assert finished.returncode == 0, finished.stderr[-3000:]
    queries = CapturedQueries(open_trace(only_trace(tmp_path / "traces").path))
    assert queries.requests == (0, 1)
    for layer in queries.layers:
        for found in queries.read(layer, queries.requests):
            assert found.is_dense
            assert found.q.shape[1] == 4
            assert found.o is not None
            replayed = attention_output(found)
            relative = np.sqrt(np.square(found.o - replayed).sum() / np.square(replayed).sum())
            print(f"layer {layer}, request {found.request}: {relative:.2e}")
            assert relative < SAME_OUTPUT
