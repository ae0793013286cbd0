"""Engines with tiny models of random weights, and what must be true of their traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.trace.reader import open_trace
from support.vllm_cpu import MAX_DISTANCE_RATIO
from support.vllm_reference import distances_from_fp32

if TYPE_CHECKING:
    from pathlib import Path

    from support.vllm_engines import StoredTrace

ENGINE: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 128,
    "seed": 0,
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}


def prompts(count: int, length: int, max_tokens: int, *, period: int | None = None) -> list[dict[str, Any]]:
    """Return random prompts of token ids; with a period they repeat, so that n-gram drafts are found."""
    random = np.random.default_rng(count * length)
    requests = []
    for _ in range(count):
        token_ids = random.integers(3, 500, period or length)
        sampling = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "detokenize": False}
        requests.append({"token_ids": np.resize(token_ids, length).tolist(), "sampling": sampling})
    return requests


def check_complete_and_right(model: Path, trace: StoredTrace, outputs: list[dict[str, Any]]) -> None:
    """Check that every computed position is stored, and is as near to an fp32 forward as bf16 is."""
    assert trace.dropped == []
    assert len(trace.requests) == len(outputs)
    for request, output in enumerate(outputs):
        record = trace.requests[request]
        assert record["computed_tokens"] == len(output["prompt"]) + len(output["output"]) - 1
        assert record["missing"] == []
        assert len(trace.rows_of(request)) == record["computed_tokens"]
    read = open_trace(trace.path).tokens
    expected = [(r, p) for r in sorted(trace.requests) for p in range(trace.requests[r]["computed_tokens"])]
    assert list(zip(read.request.tolist(), read.position.tolist(), strict=True)) == expected
    distances = distances_from_fp32(model, trace, dict(enumerate(outputs)))
    ratio = distances[..., 0] / distances[..., 1]
    print("captured / bf16 distance from fp32, [layer, k or v]:", np.round(ratio, 3).tolist())
    assert ratio.max() <= MAX_DISTANCE_RATIO


def drafts_of(trace: StoredTrace) -> tuple[int, int]:
    """Return the drafts that all requests proposed, and those that were accepted."""
    records = trace.requests.values()
    return sum(one["drafts_proposed"] for one in records), sum(one["drafts_accepted"] for one in records)
