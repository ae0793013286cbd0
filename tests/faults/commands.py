"""Commands that are killed or interrupted: outputs are whole or absent, old ones stay."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from faults.inputs import WRITERS, Inputs, problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDED: Final = (
    "replay",
    "capture run",
    "report --format html",
    "calibrate",
    "compare",
    "query",
    "replay --intervals",
    "quality run",
)
_CODES: Final = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
_PATIENCE_S: Final = 120


@dataclass(frozen=True, slots=True)
class CommandCase:
    """One command and what became of it. problem: empty where it is as it should be."""

    command: str
    what: str
    problem: str
    was_hit: bool = True
    """False: it had ended before the signal came."""


def end_commands(folder: Path, seed: int, num_cases: int) -> Iterator[CommandCase]:
    """Yield commands that a signal ends at a random time, every second one by SIGKILL.

    Times depend on the seed, the number and how long a command takes here.
    """
    inputs = Inputs(folder)
    takes = {command: _seconds(inputs, folder / "timed", command) for command in ENDED}
    for number in range(num_cases):
        drawn = random.Random(f"{seed}:{number}")
        command = ENDED[number // 2 % len(ENDED)]
        ending = signal.SIGKILL if number % 2 else drawn.choice((signal.SIGINT, signal.SIGTERM))
        after = drawn.uniform(0.05, takes[command])
        yield _ended(inputs, folder / f"ended-{number}", command, ending, after)


def _seconds(inputs: Inputs, own: Path, command: str) -> float:
    """Return how long a command takes, which must succeed."""
    own.mkdir()
    try:
        started = time.monotonic()
        process = _start(inputs, command, own / "output")
        _, err = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode in (0, 3), f"{command}: {err}"
        assert not problem(WRITERS[command], own / "output")
        return time.monotonic() - started
    finally:
        shutil.rmtree(own)


def _start(inputs: Inputs, command: str, output: Path) -> subprocess.Popen[str]:
    arguments = map(str, WRITERS[command].arguments(inputs, output))
    return subprocess.Popen(
        [sys.executable, "-m", "kvtrace", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _ended(inputs: Inputs, own: Path, command: str, ending: signal.Signals, after: float) -> CommandCase:
    own.mkdir()
    try:
        output, written = own / "output", WRITERS[command]
        inputs.old(written, output)
        process = _start(inputs, command, output)
        time.sleep(after)
        was_hit = process.poll() is None
        process.send_signal(ending)
        _, err = process.communicate(timeout=_PATIENCE_S)
        found = problem(written, output)
        # Python itself starts before kvtrace can mind a signal: then it ends by that, and may say so.
        allowed = (0, _CODES[ending], -ending)
        if process.returncode not in allowed or "Traceback" in err.replace("KeyboardInterrupt", ""):
            found = f"ended with {process.returncode} after {after:.2f} s: {err[-300:]}"
        return CommandCase(command, ending.name, found, was_hit)
    finally:
        shutil.rmtree(own, ignore_errors=True)
