"""The property: exit code as documented, one line of error, in time, nothing else written, true counts."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from faults.fuzz import time_limit
from support.run_cli import Result, kvtrace

from fuzz.true_counts import check_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fuzz.processes import Processes

SECONDS: Final = 20
"""Of CPU, all threads together."""
PATIENCE: Final = 6
"""Times as long on the clock: the machine may be busy."""
BYTES: Final = 2_000_000_000
_ANSWERS: Final = {
    "check": (0, 1, 2, 3),
    "compare": (0, 1, 2, 3),
    "scales": (0, 1, 2),
    "decide": (0, 1, 2, 3, 4),
    "quality": (0, 1, 2, 3),
}
_FOR_PROGRAMS: Final = ("--json", "csv")
"""What these print has the text of files as it is, but on a terminal."""
_KEPT: Final = ("t.kvtrace/profile", "t.kvtrace/.profile")
"""What a replay keeps in the trace that it was given."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    counts_compared: bool
    """Whether its counts were held against numpy's."""


def judge(folder: Path, arguments: tuple[object, ...], processes: Processes | None = None) -> Ended:
    """Run a command on the files of a folder. Raises AssertionError where it does not end as it should.

    processes: to run it in a process of its own, whose memory is limited too; None: in this one.
    """
    before = _files(folder)
    if processes is None:
        with time_limit(PATIENCE * SECONDS), _cpu_limit(SECONDS):
            result = kvtrace(*arguments)
    else:
        result = processes.run(arguments, seconds=SECONDS, patience=PATIENCE, num_bytes=BYTES)
    shown = (
        f"{' '.join(map(str, arguments))}: {result.returncode}\n{result.stdout[-300:]}{result.stderr[-900:]}"
    )
    assert result.returncode in _ANSWERS.get(str(arguments[0]), (0, 2)), shown
    assert "Traceback" not in result.stderr, shown
    printed = result.stderr if set(_FOR_PROGRAMS) & set(arguments) else result.stdout + result.stderr
    assert not set(printed) & set("\x1b\x9b\u202e"), shown
    _check_streams(arguments, result, shown)
    written = {
        file for file in _files(folder) - before if not file.startswith(("out/", *_KEPT)) and file != "out"
    }
    assert not written, f"{shown}\nwrote {sorted(written)}"
    if arguments[0] != "replay" or result.returncode or arguments[1].parent != folder:  # type: ignore[attr-defined]
        return Ended(result.returncode, counts_compared=False)
    return Ended(0, counts_compared=check_counts(arguments[1], folder / "out"))  # type: ignore[arg-type]


@contextmanager
def _cpu_limit(seconds: int) -> Iterator[None]:
    def give_up(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"took {seconds} s of CPU")

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _check_streams(arguments: tuple[object, ...], result: Result, shown: str) -> None:
    if result.returncode == 2:
        lines = [line for line in result.stderr.splitlines() if line.startswith("kvtrace: ")]
        assert (len(lines), result.stdout) == (1, ""), shown
        assert len(lines[0]) < 8000, shown
    if "--json" in arguments and result.returncode in (0, 1):
        json.loads(result.stdout)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
