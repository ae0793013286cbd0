"""Make samples/ again: real traffic through real vLLM, twice, then scale artifacts calibrated on parts of it.

`make sample` calls it with the analysis environment's Python, from the project's root, after it has made the
vLLM environment and the model.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np

from kvtrace.calibration.save import save_scales
from kvtrace.trace.reader import Trace, open_trace

SAMPLES = Path("samples")
TRACE = SAMPLES / "smollm2-135m.kvtrace"
WITH_QUERIES = SAMPLES / "smollm2-135m-queries.kvtrace"
SCALES = SAMPLES / "scales"
MODEL = Path(".cache/smollm2-135m")
NUM_CHAT_REQUESTS = 6
E4M3_MAX = 448.0

Maxima = dict[tuple[int, str], np.ndarray]
"""(layer, "k" | "v") → [kv_head] largest magnitude."""


def main() -> None:
    """Capture the traces, then write the artifacts."""
    python = ".venv-vllm/bin/python"
    subprocess.run([python, "samples/capture_sample.py", MODEL, TRACE], check=True)
    subprocess.run([python, "samples/capture_queries.py", MODEL, WITH_QUERIES], check=True)
    trace = open_trace(TRACE)
    few_chats = chat_requests(trace)[:NUM_CHAT_REQUESTS]
    chat, everything = maxima(trace, few_chats), maxima(trace, sorted(trace.requests))
    shutil.rmtree(SCALES, ignore_errors=True)
    write_scales("chat-per-tensor", {key: np.atleast_1d(amax.max()) for key, amax in chat.items()})
    write_scales("chat-per-head", chat)
    write_scales("all-per-head", everything)
    write_scales("halved", {key: amax / 2 for key, amax in everything.items()})


def chat_requests(trace: Trace) -> list[int]:
    """Return the numbers of the chat requests, in order of arrival."""
    return [number for number, record in sorted(trace.requests.items()) if record.workload == "chat"]


def maxima(trace: Trace, requests: list[int]) -> Maxima:
    """Return the largest magnitude per layer, tensor and KV head over the rows of some requests."""
    chosen = np.isin(trace.tokens.request, requests)
    found: Maxima = {}
    for block in trace.blocks():
        values = np.abs(block.values.view(ml_dtypes.bfloat16).astype(np.float32))[chosen[block.row]]
        key = (block.layer.index, block.tensor)
        amax = values.max(axis=(0, 2), initial=0.0)
        found[key] = np.maximum(found.get(key, 0.0), amax)
    return found


def write_scales(name: str, amax: Maxima) -> None:
    """Write absmax / 448 as a compressed-tensors artifact."""
    save_scales(
        SCALES / name,
        {key: (values / E4M3_MAX).tolist() for key, values in amax.items()},
        model=json.loads((MODEL / "config.json").read_text()),
    )


if __name__ == "__main__":
    main()
