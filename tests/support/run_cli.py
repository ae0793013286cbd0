"""Run the command line inside the test's process: what a shell sees, without starting Python again."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

from kvtrace.cli import main


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def kvtrace(*arguments: object) -> Result:
    """Run `kvtrace ARGUMENTS` and return its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    # The command minds signals as its own; the test run must be ended by them as before.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with (
        patch.object(sys, "argv", ["kvtrace", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return Result(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())
