"""What `kvtrace capture flags` prints, run as it stands: a server, its switch, and both clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from support.vllm_engines import ENVIRONMENT, StoredTrace, only_trace
from support.vllm_server import free_port, wait_until_healthy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.vllm

# The CPU build's own `vllm` looks for a distribution named vllm and fails; the module behind it is the same.
VLLM = """#!/bin/sh
[ "$1" = serve ] || exit 2
model=$2; shift 2
exec {python} -m vllm.entrypoints.openai.api_server --model "$model" --port {port} --host 127.0.0.1 \\
  --max-model-len 512 --max-num-seqs 2 --enforce-eager --gpu-memory-utilization 0.4 "$@"
"""


@pytest.fixture(scope="module")
def pasted(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredTrace, list[dict[str, Any]], str]:
    """Return the server's trace, curl's answers before and after the switch, and the Python client's log."""
    folder, port = tmp_path_factory.mktemp("flags"), free_port()
    (folder / "vllm").write_text(VLLM.format(python=sys.executable, port=port))
    (folder / "vllm").chmod(0o755)
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{folder}:{os.environ['PATH']}"}
    printed = subprocess.run(
        [
            *(sys.executable, "-m", "kvtrace", "capture", "flags", "--model", str(model), "-o", "traces"),
            *("--position-stride", "1", "--layers", "0,29", "--off", "--json"),
            *("--workload", "it's a test", "--id", "ticket-17", "--url", f"http://127.0.0.1:{port}"),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    commands = json.loads(printed.stdout)

    def shell(command: str) -> str:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout

    with (folder / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            ["sh", "-c", f"exec {commands['serve_command']}"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_healthy(server, port)
            answers = [json.loads(shell(commands["curl_command"]))]
            ask_for_capture(port, str(model))
            shell(commands["switch_on_command"])
            wait_for(
                lambda: (
                    '"sampling_id": 1' in (only_trace(folder / "traces").path / "sampling.jsonl").read_text()
                )
            )
            answers.append(json.loads(shell(commands["curl_command"])))
            client = subprocess.run(
                [sys.executable, "-c", commands["python_client"]],
                capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        finally:
            if server.poll() is None:
                server.kill()
    return only_trace(folder / "traces"), answers, client.stderr


def ask_for_capture(port: int, model: str) -> None:
    """Send what a client might try, to switch capture on by itself or to widen it."""
    wishes = {"enabled": True, "position_stride": 1, "byte_budget": 10**12, "kvtrace_enabled": True}
    body = {
        "model": model,
        "prompt": "x",
        "max_tokens": 1,
        "vllm_xargs": wishes,
        "kv_transfer_params": wishes,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200


def wait_for(condition: Callable[[], bool], patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)


def test_the_pasted_server_and_clients_leave_a_labelled_trace(
    pasted: tuple[StoredTrace, list[dict[str, Any]], str],
) -> None:
    trace, answers, client_log = pasted
    assert client_log == ""
    assert [answer["object"] for answer in answers] == ["chat.completion"] * 2
    assert [record["workload"] for record in trace.requests.values()] == ["it's a test"] * 2
    assert all(record["client_id"] for record in trace.requests.values())
    assert [layer["index"] for layer in trace.layers if layer["captured"]] == [0, 29]
    assert set(trace.tokens) == {(r, p) for r in trace.requests for p in trace.expected(r)}
    assert trace.commit["closed"]


def test_what_came_before_the_switch_is_not_in_the_trace_whatever_a_client_asked_for(
    pasted: tuple[StoredTrace, list[dict[str, Any]], str],
) -> None:
    trace, answers, _ = pasted
    assert len(answers) == 2
    assert len(trace.requests) == 2
    first = trace.requests[min(trace.requests)]
    assert first["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]
    assert first["output_tokens"] == answers[1]["usage"]["completion_tokens"]
