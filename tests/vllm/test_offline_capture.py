"""A real offline engine with every position of every request captured."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import numpy as np
import pytest
from kvtrace_capture.privacy import hash_client_id, hash_prompt, key_id
from support.vllm_prompts import HOSTILE, ONE_BY_ONE, TOGETHER

from kvtrace.trace.fingerprint import weights_digest
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from support.vllm_engines import Captured, StoredTrace

pytestmark = pytest.mark.vllm


def key_of(trace: StoredTrace) -> bytes:
    return (trace.path.parent / "kvtrace.key").read_bytes()


def test_every_computed_position_is_stored_exactly_once(captured: Captured) -> None:
    trace, rounds, _ = captured
    expected = {(r, p) for r in trace.requests for p in trace.expected(r)}
    assert len(trace.requests) == sum(len(outputs) for outputs in rounds)
    assert len(trace.tokens) == len(set(trace.tokens))
    assert set(trace.tokens) == expected
    assert trace.dropped == []
    assert trace.commit["closed"]


def test_lengths_and_ends_of_requests_are_those_the_client_saw(captured: Captured) -> None:
    trace, rounds, _ = captured
    key = key_of(trace)
    outputs = [output for outputs in rounds for output in outputs]
    by_prompt = {hash_prompt(key, output["prompt"]): output for output in outputs}
    for record in trace.requests.values():
        output = by_prompt[record["prompt_hash"]]
        assert record["prompt_tokens"] == len(output["prompt"])
        assert record["output_tokens"] == len(output["output"])
        assert record["status"] == output["finish_reason"]
        assert record["computed_tokens"] == len(output["prompt"]) + len(output["output"]) - 1


def test_each_request_has_its_clients_labels(captured: Captured) -> None:
    trace, rounds, _ = captured
    key = key_of(trace)
    for requests, outputs in [*zip(ONE_BY_ONE, rounds, strict=False), (TOGETHER, rounds[-2])]:
        for request, output in zip(requests, outputs, strict=True):
            args = request["sampling"].get("extra_args")
            client_id = hash_client_id(key, args["kvtrace_id"]) if args else None
            prompt_hash = hash_prompt(key, output["prompt"])
            found = {
                record["workload"]
                for record in trace.requests.values()
                if (record["client_id"], record["prompt_hash"]) == (client_id, prompt_hash)
            }
            assert found == {args["kvtrace_workload"] if args else "unlabelled"}


def test_a_hostile_label_is_stored_as_short_plain_text(captured: Captured) -> None:
    trace, _, _ = captured
    label = trace.requests[max(trace.requests)]["workload"]
    assert label.startswith("'; DROP TABLE rows; --[31mxxx")
    assert len(label) == 64
    assert label.isprintable()
    assert HOSTILE[0]["sampling"]["extra_args"]["kvtrace_workload"] != label


def test_positions_from_the_prefix_cache_are_recorded_as_missing(captured: Captured) -> None:
    trace, rounds, _ = captured
    repeated, salted = trace.requests[len(ONE_BY_ONE)], trace.requests[len(ONE_BY_ONE) + 1]
    block_size = trace.layers[0]["block_size"]
    cached = (len(rounds[1][0]["prompt"]) - 1) // block_size * block_size
    assert cached > 0
    assert repeated["missing"] == [[0, cached]]
    assert salted["missing"] == []


def test_prompts_longer_than_a_prefill_chunk_are_stored_whole(captured: Captured) -> None:
    trace, rounds, _ = captured
    retrieval = len(ONE_BY_ONE) - 1
    steps = np.asarray(trace._array("rows/kv/step"))[trace._used][trace.rows_of(retrieval)]
    prompt_steps = set(steps[: len(rounds[retrieval][0]["prompt"])].tolist())
    assert len(prompt_steps) > 2
    assert len(trace.rows_of(retrieval)) == trace.requests[retrieval]["computed_tokens"]


def test_neither_prompts_nor_client_ids_can_be_read_from_the_trace(captured: Captured) -> None:
    trace, _, _ = captured
    texts = [p.read_bytes() for p in trace.path.rglob("*.json*") if p.is_file()]
    assert texts
    for text in texts:
        assert b"short story about a river" not in text
        assert b"trees-1" not in text
    record = json.loads((trace.path / "trace.json").read_text())
    assert record["privacy"]["key_id"] == key_id(key_of(trace))


def test_all_files_are_readable_by_their_owner_alone(captured: Captured) -> None:
    trace, _, _ = captured
    for path in (trace.path, trace.path.parent, *trace.path.rglob("*"), trace.path.parent / "kvtrace.key"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_the_trace_says_which_engine_and_model_ran(captured: Captured, model: Path) -> None:
    trace, _, _ = captured
    record = json.loads((trace.path / "trace.json").read_text())
    assert record["model"]["weights_digest"] == weights_digest(model)
    assert record["model"]["num_kv_heads"] == 3
    assert record["engine"]["settings"]["scheduler_config"]["max_num_batched_tokens"] == 256
    assert {layer["backend"] for layer in trace.layers} == {"CPU_ATTN"}
    assert not any(layer["kv_cache_dtype"].startswith("fp8") for layer in trace.layers)


def test_the_reader_and_plain_zarr_find_the_same_rows(captured: Captured) -> None:
    trace, _, _ = captured
    opened = open_trace(trace.path)
    tokens = list(zip(opened.tokens.request.tolist(), opened.tokens.position.tolist(), strict=True))
    assert tokens == sorted(trace.tokens)
    layer = 7
    read = np.zeros((len(tokens), 3, 64), dtype=np.uint16)
    for block in opened.blocks():
        if block.layer.index == layer and block.tensor == "v":
            read[block.row] = block.values
    order = sorted(range(len(trace.tokens)), key=lambda row: trace.tokens[row])
    assert ((read.astype(np.uint32) << 16).view(np.float32) == trace.values(layer, "v")[order]).all()
