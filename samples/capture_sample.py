"""Serve the sample's requests through real vLLM with capture on: `kvtrace capture run` on `traffic`.

Usage, from the project's root: capture_sample.py MODEL TRACE [POSITION_STRIDE]

A stride of 28 keeps the sample within 40 MB at some 1,700 rows; 2 makes the trace of some 560 MB that
`make bench` measures on.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from traffic import requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traffic import SampleRequest

SAMPLE_STRIDE = 28
ENGINE = {
    "served_model_name": "SmolLM2-135M-Instruct",
    "max_model_len": 8192,
    "max_num_seqs": 8,
    "gpu_memory_utilization": 0.4,  # on the CPU: the share of RAM that must be free at the start
}


def main(model: str, trace: str, position_stride: str = str(SAMPLE_STRIDE)) -> None:
    """Write one trace of all requests in place of what is there."""
    capture(model, trace, requests(), "--position-stride", position_stride)


def capture(model: str, trace: str, chats: Sequence[SampleRequest], *options: str) -> None:
    """Write one trace of some requests in place of what is there. The key of its hashes is not kept.

    options: further ones of `kvtrace capture run`.
    """
    with tempfile.TemporaryDirectory(dir=".cache") as folder:
        prompts, captured = Path(folder, "prompts.jsonl"), Path(folder, "sample.kvtrace")
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines(chats)))
        subprocess.run(
            [
                *(sys.executable, "-m", "kvtrace", "capture", "run", "--vllm-python", ".venv-vllm"),
                *("--model", model, "--prompts", prompts, "-o", captured),
                *("--seed", "2026", "--flush-seconds", "3600"),
                *(f"--engine-arg={name}={value}" for name, value in ENGINE.items()),
                *options,
            ],
            check=True,
        )
        shutil.rmtree(trace, ignore_errors=True)
        shutil.move(captured, trace)


def lines(chats: Sequence[SampleRequest]) -> list[dict[str, object]]:
    """Return requests as `kvtrace capture run` reads them."""
    return [
        {
            "messages": list(chat.messages),
            "workload": chat.workload,
            "id": chat.client_id,
            "max_tokens": chat.max_tokens,
        }
        for chat in chats
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
