"""A real engine that serves FP8 KV with calibrated scales; its byte budget ends amid its traffic."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.vllm_checkpoints import FP8_MAX, add_kv_scales
from support.vllm_cpu import needs_fp8_cache
from support.vllm_engines import ONE_PROCESS, connector, only_trace, run_offline
from support.vllm_prompts import CHAT, CODE_COMPLETION, GERMAN, ONE_BY_ONE

from kvtrace.trace.fingerprint import weights_digest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from support.vllm_engines import Captured, StoredTrace

pytestmark = [pytest.mark.vllm, needs_fp8_cache]

ROUNDS = [[CHAT], [CODE_COMPLETION], [GERMAN], [CHAT]]
ROW_BYTES = 30 * 3 * (64 + 64) * 2
"""Layers × KV heads × (K and V) × bytes of a bfloat16."""
TOKENS = [9 + 24 - 1, 412 + 12 - 1, 20 + 12 - 1, 9 + 24 - 1]
BUDGET_ROWS = TOKENS[0] + TOKENS[1] + 25
"""It ends in the third request: 20 prompt tokens and 5 of its 11 decoded ones fit."""


def absmax(trace: StoredTrace, tensor: str) -> NDArray[np.float64]:
    return np.array([np.abs(trace.values(x["index"], tensor)).max() for x in trace.layers], dtype=np.float64)


@pytest.fixture(scope="module")
def checkpoint(model: Path, captured: Captured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace, _, _ = captured
    to = tmp_path_factory.mktemp("fp8") / "checkpoint"
    add_kv_scales(model, to, absmax(trace, "k"), absmax(trace, "v"))
    return to


@pytest.fixture(scope="module")
def fp8(checkpoint: Path) -> StoredTrace:
    folder = checkpoint.parent
    engine = {
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "seed": 0,
        "enforce_eager": True,
        "kv_transfer_config": connector(
            folder / "traces", position_stride=1, byte_budget=BUDGET_ROWS * ROW_BYTES
        ),
    }
    finished = run_offline(folder, checkpoint, engine, ROUNDS, **ONE_PROCESS)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return only_trace(folder / "traces")


@pytest.mark.parametrize("tensor", ["k", "v"])
def test_rank_json_holds_the_scales_that_the_engine_loaded(
    fp8: StoredTrace, captured: Captured, tensor: str
) -> None:
    import torch

    shipped = torch.from_numpy(absmax(captured[0], tensor) / FP8_MAX).to(torch.bfloat16).tolist()
    assert [layer[f"{tensor}_scale"] for layer in fp8.layers] == [[scale] for scale in shipped]
    assert {layer["kv_cache_dtype"] for layer in fp8.layers} == {"fp8"}
    assert len(set(shipped)) > 10


@pytest.mark.parametrize("tensor", ["k", "v"])
def test_captured_values_are_not_rounded_to_fp8(fp8: StoredTrace, tensor: str) -> None:
    import torch

    for layer in fp8.layers:
        scale = layer[f"{tensor}_scale"][0]
        values = torch.from_numpy(fp8.values(layer["index"], tensor))

        def round_trip(x: torch.Tensor, scale: float = scale) -> torch.Tensor:
            return ((x / scale).to(torch.float8_e4m3fn).float() * scale).bfloat16().float()

        rounded = round_trip(values)
        assert (values == rounded).float().mean() < 0.25
        assert (
            rounded == round_trip(rounded)
        ).float().mean() > 0.99  # what FP8-rounded values would have shown


def test_the_first_layer_has_the_values_of_the_bf16_engine(fp8: StoredTrace, captured: Captured) -> None:
    trace, _, _ = captured
    request = ROUNDS.index([CODE_COMPLETION])
    same_request = ONE_BY_ONE.index([CODE_COMPLETION])
    prompt = 412
    for tensor in ("k", "v"):
        ours = fp8.values(0, tensor)[fp8.rows_of(request)[:prompt]]
        theirs = trace.values(0, tensor)[trace.rows_of(same_request)[:prompt]]
        # FP8 E4M3 rounds to 3 bits, which leaves a relative error of 2 to 3 %.
        assert np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean()) < 0.005


def test_rows_beyond_the_byte_budget_are_dropped_and_counted_by_request(fp8: StoredTrace) -> None:
    assert [record["computed_tokens"] for record in fp8.requests.values()] == TOKENS
    assert [len(fp8.rows_of(request)) for request in fp8.requests] == [TOKENS[0], TOKENS[1], 25, 0]
    counts: Counter[tuple[int, str]] = Counter()
    for dropped in fp8.dropped:
        counts[dropped["request"], dropped["reason"]] += dropped["num_rows"]
    assert counts == {(2, "budget"): TOKENS[2] - 25, (3, "budget"): TOKENS[3]}


def test_scales_do_not_change_the_digest_of_the_weights(
    fp8: StoredTrace, checkpoint: Path, model: Path
) -> None:
    record = json.loads((fp8.path / "trace.json").read_text())
    assert record["model"]["weights_digest"] == weights_digest(checkpoint) == weights_digest(model)
    assert record["engine"]["kv_cache_dtype"] == "fp8"
