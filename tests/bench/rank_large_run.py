"""Rank the heads of 5 million result rows: `kvtrace query rank_heads` from a cold process, beside pandas.

    python tests/bench/rank_large_run.py [--keep DIR] [--repeats 5]

The run is generated: 80 layers × 8 heads × K/V × 64 candidates × 61 cells, and 2,000 rows of vectors. Printed
are medians of wall time and the largest resident set of the process; pandas, if it is installed, reads the
columns that it needs from the same Parquet file and groups them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.runs.checksums import table_checksums
from kvtrace.runs.record import RunRecord
from kvtrace.runs.schema import (
    CANDIDATES,
    CELLS,
    FINDINGS,
    GROUPS,
    MAGNITUDES,
    RUN_FILE,
    SCALES,
    SWEEP,
    VECTORS,
)
from kvtrace.runs.traffic_tables import LAYERS, REQUESTS, ROWS, SAMPLING
from kvtrace.trace.format import seal

if TYPE_CHECKING:
    from kvtrace.runs.table import Table

NUM_LAYERS, HEADS, NUM_CANDIDATES, NUM_CELLS, NUM_ROWS = 80, 8, 64, 61, 2000
WORKLOADS = ("chat", "code", "language", "retrieval", "tools")
PHASES = ("prefill", "decode")
WITH_PANDAS = """
import pandas as pd, sys
columns = ["candidate", "tensor", "layer", "kv_head", "num_values", "num_out_of_range", "num_clipped"]
cells = pd.read_parquet(sys.argv[1] + "/cells.parquet", columns=columns)
heads = cells.groupby(columns[:4], observed=True)[columns[4:]].sum().reset_index()
heads["frac"] = heads.num_out_of_range / heads.num_values
print(heads.sort_values("frac", ascending=False).head(20))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="make the run there, or use the one that is there")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--make", type=Path, help="only make the run")
    arguments = parser.parse_args()
    if arguments.make:
        make_run(arguments.make)
        return
    with tempfile.TemporaryDirectory() as scratch:
        run = arguments.keep or Path(scratch) / "large.run"
        if not (run / RUN_FILE).exists():
            # In a process of its own: a child's largest resident set counts what its parent held at the fork.
            subprocess.run([sys.executable, __file__, "--make", str(run)], check=True)
        query = ["-m", "kvtrace", "query", str(run), "rank_heads", "--param", "top=20", "--limit", "20"]
        show("kvtrace query rank_heads", [sys.executable, *query], arguments.repeats)
        if find_spec("pandas"):
            command = [sys.executable, "-c", WITH_PANDAS, str(run)]
            show("pandas, values alone", command, arguments.repeats)
        else:
            print("pandas is not installed: not compared")


def show(name: str, command: list[str], repeats: int) -> None:
    measured = [cold_process(command) for _ in range(repeats)]
    wall = statistics.median(seconds for seconds, _ in measured)
    peak = max(megabytes for _, megabytes in measured)
    print(f"{name:<28} {wall:6.2f} s  {peak:6.0f} MB  (median of {repeats}, largest resident set)")


def cold_process(command: list[str]) -> tuple[float, float]:
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def make_run(run: Path) -> None:
    """Write the run. Counts are drawn at random, seeded; the strata of rows and cells are not matched."""
    run.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    heads = grid(NUM_LAYERS, HEADS, 2)
    write(run, SAMPLING, {"sampling_id": [0], "position_stride": [16], "request_fraction": [1.0]})
    names = [f"candidate-{number:02d}" for number in range(NUM_CANDIDATES)]
    write(
        run,
        CANDIDATES,
        {
            "candidate": names,
            "ordinal": range(NUM_CANDIDATES),
            "kind": ["artifact"] * NUM_CANDIDATES,
            "status": ["valid"] * NUM_CANDIDATES,
            "engine": ["vllm-cuda"] * NUM_CANDIDATES,
            "format": ["e4m3fn"] * NUM_CANDIDATES,
        },
    )
    num_requests = NUM_ROWS // 20
    write(
        run,
        REQUESTS,
        {
            "request": range(num_requests),
            "workload": [WORKLOADS[number % len(WORKLOADS)] for number in range(num_requests)],
            "sampled": [True] * num_requests,
        },
    )
    row = np.arange(NUM_ROWS)
    position = row * 37 % 8000
    octave = np.log2(np.maximum(position, 1)).astype(np.int32)
    write(run, ROWS, {"row": row, "request": row // 20, "position": position, "position_octave": octave,
                      "phase": ["prefill"] * NUM_ROWS})  # fmt: skip
    layer, head, tensor = heads.repeat(NUM_ROWS, axis=0).T
    write(
        run,
        VECTORS,
        {
            "row": np.tile(row, len(heads)),
            "layer": layer,
            "kv_head": head,
            "tensor": chosen("kv", tensor),
            "absmax_code": (16356 + rng.normal(0, 60, len(layer))).astype(np.int32),
        },
    )
    layer, head, tensor = np.tile(heads, (NUM_CANDIDATES, 1)).T
    limit = 16500 + rng.integers(-50, 50, len(layer))
    write(
        run,
        SCALES,
        {
            "candidate": chosen(names, np.repeat(np.arange(NUM_CANDIDATES), len(heads))),
            "layer": layer,
            "kv_head": head,
            "tensor": chosen("kv", tensor),
            "scale": np.full(len(layer), 0.01),
            "covered_amax": np.full(len(layer), 4.48),
            "max_in_range_code": limit,
            "max_unclipped_code": limit + 4,
        },
    )
    write_cells(run, names, heads, rng)
    write(run, FINDINGS, {"id": []})
    write(run, LAYERS, {"layer": range(NUM_LAYERS), "dtype": ["bfloat16"] * NUM_LAYERS})
    write(run, SWEEP, {"engine": []})
    write(run, GROUPS, {"request_group": []})
    write(run, MAGNITUDES, {"magnitude": []})
    record = RunRecord(
        kvtrace_version="0", created_at=0.0, device="none", sources=(), tables=table_checksums(run)
    )
    (run / RUN_FILE).write_text(seal(record))


def write_cells(run: Path, names: list[str], heads: np.ndarray, rng: np.random.Generator) -> None:
    strata = [(w, p, o) for w in WORKLOADS for p in PHASES for o in range(4, 13)][:NUM_CELLS]
    size = NUM_CANDIDATES * len(heads) * NUM_CELLS
    candidate, head, cell = np.unravel_index(np.arange(size), (NUM_CANDIDATES, len(heads), NUM_CELLS))
    out_of_range = rng.poisson(rng.gamma(0.3, 30, size))
    clipped = rng.binomial(out_of_range, 0.6)
    signal = rng.gamma(4, 1e4, size)
    error = signal * 6e-4 * (1 + clipped / 100)
    write(
        run,
        CELLS,
        {
            "candidate": chosen(names, candidate),
            "layer": heads[head, 0],
            "kv_head": heads[head, 1],
            "tensor": chosen("kv", heads[head, 2]),
            "workload": chosen([workload for workload, _, _ in strata], cell),
            "phase": chosen([phase for _, phase, _ in strata], cell),
            "position_octave": np.array([octave for _, _, octave in strata])[cell],
            "num_vectors": np.full(size, 1000),
            "num_values": np.full(size, 64_000),
            "num_out_of_range": out_of_range,
            "num_clipped": clipped,
            "num_flushed": rng.poisson(50, size),
            "sum_sq_signal": signal,
            "sum_sq_error": error,
            "sum_sq_clip_error": error * clipped / (100 + clipped),
            "max_abs": rng.gamma(5, 1, size),
        },
    )


def grid(*sizes: int) -> np.ndarray:
    """Every combination, [product, len(sizes)]."""
    return np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), axis=1)


def chosen(names: Any, index: np.ndarray) -> pa.Array:
    return pa.array(list(names)).take(pa.array(index))


def write(run: Path, table: Table, columns: dict[str, Any]) -> None:
    size = len(next(iter(columns.values())))
    arrays = []
    for field in table.arrow_schema:
        if field.name in columns:
            arrays.append(pa.array(columns[field.name]).cast(field.type))
        elif field.name == "source":
            arrays.append(pa.array(["trace"] * size))
        else:
            arrays.append(pa.array([None if pa.types.is_string(field.type) else 0] * size).cast(field.type))
    batch = pa.Table.from_arrays(arrays, schema=table.arrow_schema)
    pq.write_table(batch, run / table.file_name, compression="zstd", row_group_size=1 << 19)


if __name__ == "__main__":
    main()
