"""Serve the sample's requests through real vLLM with capture on. Runs in the vLLM environment.

Usage: capture_sample.py MODEL TRACE [POSITION_STRIDE]

A stride of 28 keeps the sample within 40 MB at some 1,700 rows; 2 makes the trace of some 560 MB that
`make bench` measures on.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from traffic import requests
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

SAMPLE_STRIDE = 28


def main(model: str, trace: str, position_stride: str = str(SAMPLE_STRIDE)) -> None:
    """Write one trace of all requests to `trace`, in place of what is there."""
    with tempfile.TemporaryDirectory(dir=".cache") as directory:
        capture(model, directory, int(position_stride))
        (captured,) = Path(directory).glob("*.kvtrace")
        shutil.rmtree(trace, ignore_errors=True)
        shutil.move(captured, trace)


def capture(model: str, directory: str, position_stride: int) -> None:
    """Serve all requests once; the plug-in makes a trace of its own in `directory`."""
    llm = LLM(
        model=model,
        served_model_name="SmolLM2-135M-Instruct",
        max_model_len=8192,
        max_num_seqs=8,
        gpu_memory_utilization=0.4,  # on the CPU: the share of RAM that must be free at the start
        enable_prefix_caching=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector="KVTraceConnector",
            kv_connector_module_path="kvtrace_capture.connector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "directory": directory,
                "position_stride": position_stride,
                "seed": 2026,
                "flush_seconds": 3600.0,
            },
        ),
    )
    chats = requests()
    llm.chat(
        [list(chat.messages) for chat in chats],
        [
            SamplingParams(
                temperature=0.0,
                max_tokens=chat.max_tokens,
                extra_args={"kvtrace_workload": chat.workload, "kvtrace_id": chat.client_id},
            )
            for chat in chats
        ],
    )
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
