"""Capture in engines of other kinds: tiny models of random weights, an HF forward as the reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.vllm_checkpoints import write_tiny_model
from support.vllm_cpu import MAX_DISTANCE_RATIO, needs_fp8_cache
from support.vllm_engines import ONE_PROCESS, StoredTrace, connector, only_trace, run_offline
from support.vllm_reference import distances_from_fp32
from support.vllm_tiny import ENGINE, check_complete_and_right, drafts_of, prompts

from kvtrace.trace.reader import open_trace
from kvtrace.trace.strata import DECODE, PREFILL

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm


def capture(
    folder: Path, kind: str, rounds: list[list[dict[str, Any]]], engine: dict[str, Any], **environment: str
) -> tuple[Path, StoredTrace, list[dict[str, Any]]]:
    """Serve the rounds with a tiny model; return the model, its trace and all outputs in order."""
    model = folder / "model"
    write_tiny_model(model, kind)
    full = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=1), **engine}
    finished = run_offline(folder, model, full, rounds, **environment)
    assert finished.returncode == 0, finished.stderr[-3000:]
    out = json.loads((folder / "out.json").read_text())
    return model, only_trace(folder / "traces"), [output for outputs in out["rounds"] for output in outputs]


def test_a_compiled_engine_is_captured_completely(tmp_path: Path) -> None:
    rounds = [prompts(1, 200, 8), prompts(3, 40, 8)]
    found = capture(tmp_path, "llama", rounds, {"enforce_eager": False}, **ONE_PROCESS)
    assert "compilation" in (tmp_path / "log.txt").read_text()
    check_complete_and_right(*found)


@pytest.mark.vllm_full
def test_layers_with_a_sliding_window_are_captured_beside_full_ones(tmp_path: Path) -> None:
    model, trace, outputs = capture(tmp_path, "gemma3", [prompts(3, 300, 8)], {}, **ONE_PROCESS)
    assert {layer["sliding_window"] for layer in trace.layers} == {64, None}
    check_complete_and_right(model, trace, outputs)


@pytest.mark.vllm_full
def test_the_attention_layers_of_a_hybrid_model_are_captured_and_the_others_named(tmp_path: Path) -> None:
    model, trace, outputs = capture(tmp_path, "lfm2", [prompts(3, 300, 8)], {}, **ONE_PROCESS)
    assert [layer["index"] for layer in trace.layers] == [1, 3]
    settings = json.loads((trace.path / "trace.json").read_text())["engine"]["settings"]
    assert settings["layers_without_kv"] == ["model.layers.0.short_conv", "model.layers.2.short_conv"]
    check_complete_and_right(model, trace, outputs)


@needs_fp8_cache
@pytest.mark.vllm_full
def test_an_e5m2_cache_is_captured_before_its_rounding(tmp_path: Path) -> None:
    engine = {"kv_cache_dtype": "fp8_e5m2"}
    model, trace, outputs = capture(tmp_path, "llama", [prompts(3, 200, 8)], engine, **ONE_PROCESS)
    assert {layer["kv_cache_dtype"] for layer in trace.layers} == {"fp8_e5m2"}
    assert {tuple(layer["k_scale"] + layer["v_scale"]) for layer in trace.layers} == {(1.0, 1.0)}
    distances = distances_from_fp32(model, trace, dict(enumerate(outputs)), e5m2=True)
    ratio = distances[..., 0] / distances[..., 1]
    print("captured / bf16 distance from fp32, [layer, k or v]:", np.round(ratio, 3).tolist())
    assert ratio.max() <= MAX_DISTANCE_RATIO


@pytest.mark.vllm_full
def test_preempted_requests_are_stored_with_their_last_write(tmp_path: Path) -> None:
    engine = {"num_gpu_blocks_override": 6, "max_model_len": 384}
    model, trace, outputs = capture(tmp_path, "llama", [prompts(4, 120, 150)], engine, **ONE_PROCESS)
    assert sum(record["preemptions"] for record in trace.requests.values()) > 0
    assert len(trace.tokens) > len(set(trace.tokens))
    check_complete_and_right(model, trace, outputs)
    # A resumed request is prefilled again up to where it was; what was generated stays decode.
    tokens = open_trace(trace.path).tokens
    prompt_tokens = np.array(
        [trace.requests[request]["prompt_tokens"] for request in tokens.request.tolist()]
    )
    assert (tokens.phase == np.where(tokens.position < prompt_tokens, PREFILL, DECODE)).all()
    assert (tokens.phase == DECODE).sum() == sum(len(output["output"]) - 1 for output in outputs)


@pytest.mark.vllm_full
def test_rejected_drafts_of_speculative_decoding_are_overwritten(tmp_path: Path) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    rounds = [prompts(3, 96, 60, period=12)]
    model, trace, outputs = capture(tmp_path, "llama", rounds, {"speculative_config": drafts}, **ONE_PROCESS)
    assert len(trace.tokens) > len(set(trace.tokens))
    proposed, accepted = drafts_of(trace)
    assert 0 < accepted < proposed
    check_complete_and_right(model, trace, outputs)


@pytest.mark.vllm_full
def test_capture_works_beside_another_connector(tmp_path: Path) -> None:
    ours = connector(tmp_path / "traces", position_stride=1)
    other = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "storage")},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [ours, other]},
    }
    engine = {"kv_transfer_config": both, "disable_hybrid_kv_cache_manager": True}
    check_complete_and_right(*capture(tmp_path, "llama", [prompts(3, 40, 8)], engine, **ONE_PROCESS))
