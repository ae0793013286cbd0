"""A real OpenAI-compatible server: a free port, and the moment from which it answers."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from support.vllm_engines import START_TIMEOUT_S

if TYPE_CHECKING:
    import subprocess


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended before it was healthy"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise TimeoutError("the server did not become healthy")
