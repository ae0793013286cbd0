"""The KV-cache scales that reach the layers of a real engine, whatever its cache's dtype is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def started(checkpoint: Path) -> subprocess.CompletedProcess[str]:
    """Return what an engine said as it loaded a checkpoint."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(
        [sys.executable, TESTS / "vllm" / "load_scales.py", checkpoint],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def loaded(checkpoint: Path) -> dict[int, list[float]]:
    """Return layer → [k, v] as an engine loaded them."""
    done = started(checkpoint)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-3000:]
    return {int(name.split(".")[2]): pair for name, pair in json.loads(lines[0][len("FOUND ") :]).items()}
