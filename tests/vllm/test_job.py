"""How a job of vLLM offline is run, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm
_TELLS_ITS_PATIENCE = """
import os, sys
from kvtrace_capture.job import run_job
name = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"
run_job(int(sys.argv[1]), lambda job, tell: tell({"waits": os.environ[name]}))
"""


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "50"), ({"VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "7"}, "7")]
)
def test_workers_get_the_time_to_write_what_is_queued_unless_the_user_says_how_much(
    given: dict[str, str], expected: str
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as events:
        process = subprocess.Popen(
            [sys.executable, "-c", _TELLS_ITS_PATIENCE, str(writer)],
            stdin=subprocess.PIPE, pass_fds=(writer,), env={**os.environ, **given},
        )  # fmt: skip
        os.close(writer)
        assert process.stdin is not None
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        assert json.loads(events.readline()) == {"waits": expected}
        process.stdin.close()
        process.wait()
