"""What a user waits for: commands from a cold process, beside `import torch`, which neither of them does.

    python tests/bench/cold_commands.py [--repeats 5]

On a copy of the bundled sample under four artifacts: a replay with artifacts that the
trace was not replayed under before, its counts being ready, and the report on the run that this gives. Cold
is the process, not the disk: one run of each is not counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAMPLES = Path(__file__).parents[2] / "samples"
ARTIFACTS = ("chat-per-tensor", "chat-per-head", "all-per-head", "halved")
KVTRACE = (sys.executable, "-m", "kvtrace")


@dataclass(frozen=True)
class Cost:
    """Of one process, in seconds. cpu: of all its threads, user and system."""

    wall: float
    cpu: float


def main() -> None:
    """Make the runs in a temporary directory and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        trace = shutil.copytree(SAMPLES / "smollm2-135m.kvtrace", Path(scratch) / "sample.kvtrace")
        scales = [word for name in ARTIFACTS for word in ("--scales", str(SAMPLES / "scales" / name))]
        _cost_of([*KVTRACE, "replay", str(trace), "-o", f"{scratch}/first.run"])  # counts the trace's values
        print(f"{'median of ' + str(repeats) + ' cold processes':<34}{'wall s':>8}{'min–max':>14}", end="")
        print(f"{'CPU s':>8}{'min–max':>14}")

        def replayed(number: int) -> list[str]:
            return [*KVTRACE, "replay", str(trace), *scales, "-o", f"{scratch}/{number}.run"]

        _show("kvtrace replay, counts ready", repeats, replayed)
        _show("kvtrace report RUN", repeats, lambda _: [*KVTRACE, "report", f"{scratch}/0.run"])
        _show('python -c "import torch"', repeats, lambda _: [sys.executable, "-c", "import torch"])


def _show(name: str, repeats: int, command: Callable[[int], Sequence[str]]) -> None:
    """Print a line on `command`, which is given the number of the run."""
    costs = [_cost_of(command(number)) for number in range(repeats + 1)][1:]
    cells = [_cells([one.wall for one in costs]), _cells([one.cpu for one in costs])]
    print(f"{name:<34}{''.join(cells)}", flush=True)


def _cells(seconds: Sequence[float]) -> str:
    span = f"{min(seconds):.2f}–{max(seconds):.2f}"
    return f"{statistics.median(seconds):>8.2f}{span:>14}"


def _cost_of(command: Sequence[str]) -> Cost:
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


if __name__ == "__main__":
    main()
