"""The property: exit code as documented, one line of error, in time, nothing else written, true counts."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import zarr
from faults.fuzz import time_limit
from support.run_cli import Result, kvtrace

if TYPE_CHECKING:
    from pathlib import Path

SECONDS: Final = 20
BYTES: Final = 2_000_000_000
_ANSWERS: Final = {"check": (0, 1, 2, 3), "compare": (0, 1, 2, 3), "scales": (0, 1, 2)}


def judge(folder: Path, arguments: tuple[object, ...], *, fresh: bool) -> int:
    """Run a command on the files of a folder, and return its exit code. Raises AssertionError."""
    before = _files(folder)
    result = _in_a_process(arguments) if fresh else _in_process(arguments)
    shown = f"{' '.join(map(str, arguments))}: {result}"
    assert result.returncode in _ANSWERS.get(str(arguments[0]), (0, 2)), shown
    assert "Traceback" not in result.stderr, shown
    assert not set(result.stdout + result.stderr) & set("\x1b\x9b\u202e"), shown
    if result.returncode == 2:
        lines = [line for line in result.stderr.splitlines() if line.startswith("kvtrace: ")]
        assert (len(lines), result.stdout) == (1, ""), shown
    written = {file for file in _files(folder) - before if file.split("/")[0] != "out"}
    kept = {file for file in written if "/profile" in file}
    assert written == kept, f"{shown}\nwrote {sorted(written - kept)}"
    if arguments[0] == "replay" and result.returncode == 0:
        _compare(folder, arguments)
    return result.returncode


def _in_process(arguments: tuple[object, ...]) -> Result:
    with time_limit(SECONDS):
        return kvtrace(*arguments)


def _in_a_process(arguments: tuple[object, ...]) -> Result:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    command = [sys.executable, "-m", "kvtrace", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3 * SECONDS)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert most < BYTES or most == before * 1024, f"{command}: took {most:,} bytes"
    return Result(done.returncode, done.stdout, done.stderr)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def _compare(folder: Path, arguments: tuple[object, ...]) -> None:
    """Assert that a run's counts of values are those that numpy finds in the Zarr arrays."""
    trace = arguments[1]
    if (
        not any((trace / "rank-0.zarr/layers/00/k").iterdir())
        or not (trace / "rank-0.zarr/layers/00/k/c").exists()
    ):
        return
    found = pl.read_parquet(folder / "out/cells.parquet").filter(pl.col("candidate") == "bf16")
    grouped = found.group_by("layer", "kv_head", "tensor").agg(
        pl.col("num_values").sum(), pl.col("max_abs").max()
    )
    counts = {(row[0], row[1], row[2]): row[3:] for row in grouped.iter_rows()}
    expected: dict[Any, Any] = {}
    for head, found_by_numpy in _counts(trace):
        expected.setdefault(head, found_by_numpy)  # of ranks that share a head the first one counts
    assert counts == expected, f"{counts} is not {expected}"


def _counts(trace: Path) -> Any:
    """Yield (layer, KV head, tensor) → values and the largest magnitude, of rows that count."""
    last = {}
    for line in (trace / "requests.jsonl").read_text().splitlines():
        record = json.loads(line)
        last[record["request"]] = record
    for store in sorted(trace.glob("rank-*.zarr")):
        rank = json.loads((store / "rank.json").read_text())
        group = zarr.open_group(store, mode="r")
        rows = {name: group[f"rows/kv/{name}"][:] for name in ("request", "position", "step")}
        place: dict[tuple[int, int], tuple[int, int]] = {}
        for row, (number, position, step) in enumerate(zip(*rows.values(), strict=True)):
            record = last.get(int(number))
            if record and (record["status"] == "running" or position < record["computed_tokens"]):
                place[number, position] = max(place.get((number, position), (-1, -1)), (int(step), row))
        kept = sorted(row for _, row in place.values())
        for layer in rank["layers"]:
            for tensor in "kv" if layer.get("captured", True) else "":
                values = group[f"layers/{layer['index']:02d}/{tensor}"][:][kept]
                magnitudes = np.abs((values.astype(np.uint32) << 16).view(np.float32))
                for axis, head in enumerate(layer["kv_heads"]):
                    yield (
                        (layer["index"], head, tensor),
                        (magnitudes[:, axis].size, float(magnitudes[:, axis].max())),
                    )
