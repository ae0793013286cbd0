"""Faults in a real vLLM on the CPU: its worker killed, its disk full or gone, its writer dead; and
attacks by who shares its directory or calls it.

`python -m faults.in_vllm --model DIR [--seed N]`, in vLLM's environment. Every engine answers the same
prompts, one by one, so outputs, K and V are the same to the last bit; the first one, left in peace, says what
they are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.vllm_engines import DRIVER, ENVIRONMENT, connector
from support.vllm_prompts import ONE_BY_ONE

from faults.attacks import ATTACKS
from faults.scratch import scratch, small_disk
from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_KILLS: Final = 5
CONNECTOR: Final = "kvtrace_capture.connector"
ENGINE: Final = {
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "seed": 0,
    "enforce_eager": True,
}
ROUNDS: Final = [[{**one[0], "cache_salt": f"{n}"}] for n in range(3) for one in ONE_BY_ONE]
STOPPED: Final = "capture stopped, the trace keeps its committed rows"
_START_SECONDS: Final = 400
_DISK_BYTES: Final = 4_000_000


@dataclass
class Engine:
    """One engine at work."""

    folder: Path
    traces: Path
    process: subprocess.Popen[bytes]

    @property
    def trace(self) -> Path | None:
        """Return its trace, once it is there."""
        return next(iter(self.traces.glob("*.kvtrace")), None)

    @property
    def log(self) -> str:
        """Return what it has logged so far."""
        return (self.folder / "log.txt").read_text(errors="replace")

    def num_rows(self) -> int:
        """Return the rows that are committed."""
        try:
            commit = (self.trace / "rank-0.zarr/commit.json").read_bytes() if self.trace else b"{}"
        except OSError:
            return 0
        return sum(chunk["num_rows"] for chunk in json.loads(commit).get("chunks", ()))

    def outputs(self) -> list[Any]:
        """Wait for its end and return the tokens that each round got."""
        assert self.process.wait(_START_SECONDS) == 0, self.log[-3000:]
        rounds = json.loads((self.folder / "out.json").read_text())["rounds"]
        return [[one["output"] for one in outputs] for outputs in rounds]


Values = dict[tuple[int, int, int, str], bytes]
"""(request, position, layer, tensor) → the bits of all heads"""


def start_engine(
    folder: Path,
    model: Path,
    traces: Path,
    *,
    module: str = CONNECTOR,
    labels: Any = None,
    **settings: Any,
) -> Engine:
    """Start an engine that captures every position of three layers, and commits all the time.

    labels: of every request, as a client gives them. settings: of the capture, besides.
    """
    folder.mkdir(parents=True, exist_ok=True)
    capture = connector(traces, position_stride=1, layers=[0, 14, 29], flush_seconds=0.05, **settings)
    capture["kv_connector_module_path"] = module
    rounds = [
        [
            {**one, "sampling": {**one["sampling"], **({"extra_args": labels} if labels else {})}}
            for one in requests
        ]
        for requests in ROUNDS
    ]
    job = {
        "model": str(model),
        "engine": {**ENGINE, "kv_transfer_config": capture},
        "rounds": rounds,
        "out": str(folder / "out.json"),
    }
    (folder / "job.json").write_text(json.dumps(job))
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(folder / "job.json")],
            env={**os.environ, **ENVIRONMENT},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Engine(folder, traces, process)


def stored_values(trace: Path) -> Values:
    """Return every value that a reader finds."""
    opened = open_trace(trace, may_lack_tokens=True)
    summarize(opened, verify=True)
    found: Values = {}
    for block in opened.blocks():
        for row, vectors in zip(block.row.tolist(), block.values, strict=True):
            token = int(opened.tokens.request[row]), int(opened.tokens.position[row])
            found[*token, block.layer.index, block.tensor] = vectors.tobytes()
    return found


class Faults:
    """All faults, each on an engine of its own; `expected_*` come from the one that was left in peace."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model = folder, model
        engine = start_engine(folder / "peace", model, folder / "peace" / "traces")
        self.expected_outputs = engine.outputs()
        assert engine.trace is not None
        self.expected_values = stored_values(engine.trace)
        self.num_rows = engine.num_rows()

    def kill(self, number: int, share: float, seconds: float) -> str:
        """Kill -9 the process that writes the trace, some time after a share of all rows is committed."""
        engine = self.start(f"kill-{number}")
        _wait_until(lambda: engine.num_rows() >= max(share * self.num_rows, 1), engine)
        time.sleep(seconds)
        (worker,) = _processes_with(engine.trace, "rank-0.zarr/dropped.jsonl")
        acknowledged = engine.num_rows()
        os.kill(worker, signal.SIGKILL)
        _end(engine)
        assert engine.trace is not None
        found = self.check_values(engine.trace)
        opened = open_trace(engine.trace, may_lack_tokens=True)
        assert not summarize(opened).closed
        assert sum(chunk.num_rows for chunk in opened.ranks[0].commit.chunks) >= acknowledged
        return (
            f"killed {seconds:.2f} s after {share:.0%} of all rows: {found:,} of "
            f"{len(self.expected_values):,} vectors, all the reference's; not closed, and it says so"
        )

    def disk_full(self) -> str:
        """The disk is full before the prompts are through."""
        try:
            disk = small_disk(self._folder / "disk", _DISK_BYTES)
            with disk as path:
                return self._serve_on("disk-full", path / "traces", "No space left")
        except PermissionError as error:
            return f"not run: {error}"

    def directory_removed(self) -> str:
        """The directory is removed while the engine serves."""
        engine = self.start("removed")
        _wait_until(lambda: engine.num_rows() > 0, engine)
        assert engine.trace is not None
        trace = engine.trace
        trace.rename(self._folder / "gone")  # at once: the writer may be at work in it
        shutil.rmtree(self._folder / "gone", ignore_errors=True)
        assert engine.outputs() == self.expected_outputs
        assert not trace.exists()
        assert engine.log.count(STOPPED) == 1
        return f"outputs of all {len(ROUNDS)} prompts equal; nothing was made again; logged once"

    def writer_dies(self) -> str:
        """The writer's thread dies at its third chunk."""
        folder = self._folder / "dying"
        return self._serve_on("dying", folder / "traces", "told to die", module="faults.dying_connector")

    def start(self, name: str, traces: Path | None = None, **options: Any) -> Engine:
        """Start an engine of its own; traces: where to, else beside it."""
        return start_engine(
            self._folder / name, self._model, traces or self._folder / name / "traces", **options
        )

    def _serve_on(self, name: str, traces: Path, failure: str, **options: str) -> str:
        engine = self.start(name, traces, **options)
        assert engine.outputs() == self.expected_outputs
        assert engine.log.count(STOPPED) == 1, engine.log[-3000:]
        assert failure in engine.log
        assert engine.trace is not None
        found = self.check_values(engine.trace)
        summary = summarize(open_trace(engine.trace, may_lack_tokens=True), verify=True)
        dropped = summary.completeness.num_dropped
        uncounted = engine.log.count("rows are lost that the trace could not count")
        assert dropped or uncounted
        return (
            f"outputs of all {len(ROUNDS)} prompts equal; {found:,} of {len(self.expected_values):,} vectors "
            f"stored, all the reference's; {dropped:,} rows counted as dropped; logged once"
        )

    def check_values(self, trace: Path) -> int:
        """Return the vectors that a trace has, all of them the reference's."""
        found = stored_values(trace)
        wrong = [place for place, value in found.items() if self.expected_values.get(place) != value]
        assert not wrong, f"{len(wrong)} of {len(found)} values differ, such as {wrong[0]}"
        return len(found)


def _processes_with(trace: Path | None, name: str) -> list[int]:
    """Return the processes that have a file of the trace open."""
    assert trace is not None
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(fd.readlink() == trace / name for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _wait_until(is_so: Callable[[], bool], engine: Engine) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not is_so():
        assert engine.process.poll() is None, engine.log[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _end(engine: Engine) -> None:
    """Let the front end notice, then end what is left of this engine: a session of its own."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        engine.process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(engine.process.pid, signal.SIGKILL)
    engine.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.in_vllm")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seed", type=int, help="pins the moments of the kills; else drawn anew")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"real vLLM on the CPU, seed {seed}")
    started, num_wrong = time.monotonic(), 0
    with scratch() as folder:
        faults = Faults(folder, options.model)
        cases: list[tuple[str, Callable[[], str]]] = [
            ("disk full", faults.disk_full),
            ("directory removed", faults.directory_removed),
            ("writer's thread dies", faults.writer_dies),
            *((name, partial(attack, faults, folder)) for name, attack in ATTACKS.items()),
        ]
        for number in range(NUM_KILLS):
            draw = random.Random(f"{seed}:vllm:{number}")
            kill = partial(faults.kill, number, draw.random() * 0.7, draw.random() * 0.1)
            cases.append((f"kill -9 of the worker, {number + 1}", kill))
        for name, case in cases:
            if options.only not in name:
                continue
            try:
                shown = case()
            except Exception as error:  # noqa: BLE001 -- printed, and counted
                shown, num_wrong = f"WRONG: {type(error).__name__}: {error}", num_wrong + 1
            print(f"  {name:<26} {shown}", flush=True)
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
