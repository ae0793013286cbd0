"""Runs `python -m kvtrace …` many times, and imports torch, numba and DuckDB only once.

It imports what others wrote, then forks for every command, which imports all of kvtrace as a shell's would.
A line of JSON in is a command, a line of JSON out what became of it. It runs with the PYTHONPATH of the side
that it serves, so it imports nothing of the package that it lies in.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback
import warnings
from typing import Any

HEAVY = (
    "numpy",
    "pyarrow.parquet",
    "pyarrow.compute",
    "duckdb",
    "torch",
    "numba",
    "scipy.stats",
    "pydantic",
    "zarr",
    "numcodecs",
    "typer",
    "rich.console",
    "jinja2",
    "vl_convert",
    "safetensors",
)
"""A name that is not installed is passed over; a command that needs it says so itself."""


def serve() -> None:
    """Answer commands until the input ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in HEAVY:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def run(command: dict[str, Any]) -> dict[str, Any]:
    """Run one command in a fork; return its exit code and CPU seconds.

    command: `argv`, `cwd`, `env` (added to this process's), `stdout` and `stderr` (files to write).
    """
    child = os.fork()
    if child == 0:
        os._exit(_inside(command))
    _, status, usage = os.wait4(child, 0)
    return {"exit": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}


def _inside(command: dict[str, Any]) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, command["stdout"]), (2, command["stderr"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.chdir(command["cwd"])
    os.environ |= command["env"]
    sys.argv = ["kvtrace", *command["argv"]]
    code: Any = 0
    try:
        runpy.run_module("kvtrace", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 -- what the interpreter itself does at its end
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    serve()
