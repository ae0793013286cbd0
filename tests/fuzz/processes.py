"""A process for every command, forked from one that has imported all that commands import and run none.

So a crash, a hang or the memory of one shows by itself, and a case costs a tenth of a Python started anew;
one in `ANEW` is that, for what only its start can show.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import same_as
from support.run_cli import Result

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

ANEW: Final = 20
_SERVER: Final = Path(same_as.__file__).with_name("fork_server.py")


class Processes:
    """Runs commands, one after the other. Close it: it holds a process. folder: for what they print."""

    def __init__(self, folder: Path) -> None:
        self.num_run = self.num_anew = 0
        self.most_bytes = 0
        """Of memory, that any took at a time."""
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-P", str(_SERVER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()

    def run(self, arguments: tuple[object, ...], *, seconds: int, patience: int, num_bytes: int) -> Result:
        """Run a command. Raises AssertionError: a signal ended it, as after its time; or its memory did."""
        self.num_run += 1
        argv = list(map(str, arguments))
        if self.num_run % ANEW == 0:
            self.num_anew += 1
            command = [sys.executable, "-m", "kvtrace", *argv]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=patience * seconds
            )
            return Result(done.returncode, done.stdout, done.stderr)
        printed = {name: self._folder / name for name in ("stdout", "stderr")}
        command = {
            "argv": argv, "cwd": str(self._folder), "env": {}, "cpu_seconds": seconds,
            "seconds": patience * seconds,
            **{name: str(path) for name, path in printed.items()},
        }  # fmt: skip
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(command) + "\n")
        self._server.stdin.flush()
        ended = json.loads(self._server.stdout.readline())
        self.most_bytes = max(self.most_bytes, ended["peak_bytes"])
        text = {name: path.read_text() for name, path in printed.items()}
        assert ended["exit"] >= 0, f"{argv}: ended by signal {-ended['exit']}: {text}"
        assert ended["peak_bytes"] < num_bytes, f"{argv}: took {ended['peak_bytes']:,} bytes"
        return Result(ended["exit"], **text)
