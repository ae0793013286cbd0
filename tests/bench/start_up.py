"""What a command costs before it has work to do, beside another commit: help, a small query, a connection.

    python tests/bench/start_up.py BASE [--repeats 10]

Printed is the least CPU time, user and system, of so many cold processes in turn: whatever else the machine
does can only add to it. The run is the bundled sample's under two artifacts, made by the base's code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARTIFACTS = ("chat-per-tensor", "chat-per-head")
CONNECTIONS = 10
CONNECT = f"""
import sys
from kvtrace.query import connect_with_views
from kvtrace.runs.open import open_run
run = open_run(sys.argv[1])
kept = [connect_with_views(run) for _ in range({CONNECTIONS})]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", help="a commit")
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        base, run = Path(scratch) / "base", f"{scratch}/sample.run"
        base.mkdir()
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", options.base], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(base)], input=archive.stdout, check=True)
        scales = [word for name in ARTIFACTS for word in ("--scales", f"samples/scales/{name}")]
        cpu_s(base, "-m", "kvtrace", "replay", "samples/smollm2-135m.kvtrace", *scales, "-o", run)
        commands = {
            "kvtrace --help": ("-m", "kvtrace", "--help"),
            "kvtrace query RUN coverage": ("-m", "kvtrace", "query", run, "coverage"),
            "kvtrace query RUN rank_heads": ("-m", "kvtrace", "query", run, "rank_heads"),
            f"{CONNECTIONS} connections": ("-c", CONNECT, run),
        }
        print(f"{'least CPU s of ' + str(options.repeats):<30}{options.base[:9]:>10}{'here':>8}{'ratio':>8}")
        for name, command in commands.items():
            pairs = [(cpu_s(base, *command), cpu_s(ROOT, *command)) for _ in range(options.repeats)]
            before, here = (min(side) for side in zip(*pairs, strict=True))
            print(f"{name:<30}{before:>10.3f}{here:>8.3f}{here / before:>8.2f}", flush=True)


def cpu_s(tree: Path, *arguments: str) -> float:
    """Return the CPU time of Python with a tree's code, in its folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(tree), str(tree / "capture")))}
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=tree, env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed with the code of {tree}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
