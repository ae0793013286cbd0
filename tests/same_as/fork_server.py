"""Runs `python -m kvtrace …` many times, and imports torch, numba, DuckDB and kvtrace only once.

Every command runs in a fork. What it imported, the server imports afterwards, so that the next one need not;
names are learnt, none is known here. A line of JSON in is a command, a line of JSON out what became of it. It
runs with the PYTHONPATH of the side that it serves, so it imports nothing of the package that it lies in.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import traceback
import warnings
from typing import Any


def serve() -> None:
    """Answer commands until the input ends."""
    _one_thread_in_duckdb()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def _one_thread_in_duckdb() -> None:
    """Have DuckDB use one thread: several add floats in any order, and last digits differ from run to run."""
    try:
        import duckdb
    except ImportError:
        return
    connect = duckdb.connect

    def with_one_thread(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        connection.execute("SET threads = 1")
        return connection

    duckdb.connect = with_one_thread


_KNOWN = set(sys.modules)
"""Modules that are here, or that cannot be imported by their name."""


def run(command: dict[str, Any]) -> dict[str, Any]:
    """Run one command in a fork; return its exit code, CPU seconds and largest memory.

    command: `argv`, `cwd`, `env` (added to this process's), `stdout` and `stderr` (files to write); where
    given `seconds` and `cpu_seconds`, after which SIGALRM or SIGXCPU ends it.
    """
    learnt, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = _inside(command)
        os.write(told, "\n".join(sys.modules.keys() - _KNOWN).encode())
        os._exit(code)
    os.close(told)
    with os.fdopen(learnt) as names:
        _learn(names.read().splitlines())
    _, status, usage = os.wait4(child, 0)
    return {
        "exit": os.waitstatus_to_exitcode(status),
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def _learn(names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(set(names) - _KNOWN):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    _KNOWN.update(names)


def _inside(command: dict[str, Any]) -> int:
    signal.alarm(command.get("seconds", 0))
    if limit := command.get("cpu_seconds"):
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
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
