"""Commands that are killed, interrupted or have no disk: outputs are whole or absent, old ones stay."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from support.run_cli import kvtrace

from faults.fuzz import SCALES
from faults.scratch import small_disk
from faults.small_trace import write_small_trace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMANDS: Final = ("replay", "report", "report html", "calibrate", "compare", "query", "inspect")
OLD: Final = "what was there before"
_CODES: Final = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
_DISK_BYTES: Final = 128 << 10
_MAX_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class CommandCase:
    """One command and what became of it. problem: empty where it is as it should be."""

    command: str
    what: str
    problem: str


class Inputs:
    """A small trace and its run."""

    def __init__(self, folder: Path) -> None:
        self.trace = write_small_trace(folder / "small.kvtrace")
        self.run = folder / "base.run"
        assert kvtrace("replay", self.trace, "--scales", SCALES, "-o", self.run).returncode == 0

    def arguments(self, command: str, output: Path) -> tuple[object, ...]:
        """Return a command's arguments; all but two write to an output that may be there."""
        force = ("-o", output, "--force")
        return {
            "replay": ("replay", self.trace, *force),
            "report": ("report", self.trace, *force),
            "report html": ("report", self.run, "--format", "html", *force),
            "calibrate": ("calibrate", self.trace, "-o", output),
            "compare": ("compare", self.run, *force),
            "query": ("query", self.run, "rank_heads", "--format", "parquet", *force),
            "inspect": ("inspect", self.trace, "--verify", *force),
        }[command]


def end_commands(folder: Path, seed: int, num_cases: int) -> Iterator[CommandCase]:
    """Yield commands that a signal ends at a random time. Case n depends on the seed and n alone."""
    inputs = Inputs(folder)
    for number in range(num_cases):
        drawn = random.Random(f"{seed}:{number}")
        command = COMMANDS[number % len(COMMANDS)]
        ending = drawn.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
        yield _ended(inputs, folder / f"ended-{number}", command, ending, drawn.uniform(0.1, _MAX_S))


def fill_disks(folder: Path) -> Iterator[CommandCase]:
    """Yield commands whose output lies on a full disk. Raises PermissionError: none can be mounted."""
    inputs = Inputs(folder)
    for command in COMMANDS:
        with small_disk(folder / "disk", _DISK_BYTES) as disk:
            output = _output(command, disk)
            (disk / "filler").write_bytes(bytes(max(0, _free(disk) - 8192)))
            found = kvtrace(*inputs.arguments(command, output))
            problem = _problem(command, output)
            if found.returncode not in (0, 2) or "Traceback" in found.stderr:
                problem = f"ended with {found.returncode}: {found.stderr[-300:]}"
            if found.returncode == 2 and problem == "" and command != "calibrate":
                assert command == "replay" or output.read_text() == OLD
            yield CommandCase(command, f"full disk, ended with {found.returncode}", problem)
        (folder / "disk").rmdir()


def _ended(inputs: Inputs, own: Path, command: str, ending: signal.Signals, after: float) -> CommandCase:
    own.mkdir()
    try:
        output = _output(command, own)
        process = subprocess.Popen(
            [sys.executable, "-m", "kvtrace", *map(str, inputs.arguments(command, output))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(after)
        process.send_signal(ending)
        _, err = process.communicate(timeout=120)
        problem = _problem(command, output)
        # Python itself starts before kvtrace can mind a signal.
        if process.returncode not in (0, _CODES[ending], -ending) or "Traceback" in err.replace(
            "KeyboardInterrupt", ""
        ):
            problem = f"ended with {process.returncode} after {after:.2f} s: {err[-300:]}"
        return CommandCase(command, ending.name, problem)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _output(command: str, folder: Path) -> Path:
    output = folder / "output"
    if command not in ("replay", "calibrate"):
        output.write_text(OLD)
    return output


def _problem(command: str, output: Path) -> str:
    """Return why an output is neither what was there nor a whole new one."""
    if command in ("replay", "calibrate"):
        last = output / ("run.json" if command == "replay" else "config.json")
        return "" if not output.exists() or last.is_file() else "its directory is not whole"
    content = output.read_bytes()
    return "" if content == OLD.encode() or _is_whole(command, content) else f"holds {content[-80:]!r}"


def _is_whole(command: str, content: bytes) -> bool:
    if command == "query":
        return content[-4:] == b"PAR1"
    return content.rstrip().endswith(b"</html>") if command == "report html" else content.endswith(b"\n")


def _free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize
