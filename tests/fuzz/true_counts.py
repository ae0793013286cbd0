"""What numpy alone counts in a trace's Zarr arrays, against the run that a replay made of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import zarr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

COLUMNS: Final = (
    "num_vectors",
    "num_values",
    "num_nonfinite",
    "num_out_of_range",
    "num_clipped",
    "num_flushed",
)
_MAX, _CLIPS_BEYOND, _FLUSHED_TO = 448.0, 464.0, 2.0**-10
"""Of E4M3FN at scale 1: half the last step above the maximum, and half of the smallest subnormal."""


def check_counts(trace: Path, run: Path) -> bool:
    """Assert that a run's counts at scale 1 are those of the trace; return False where it has no tensors."""
    if not any(trace.glob("rank-*.zarr/layers/*/*/c")):
        return False
    (unit,) = pl.read_parquet(run / "candidates.parquet").filter(pl.col("kind") == "unit").to_dicts()
    # Of other engines and formats: what does not hang on them.
    num_columns = len(COLUMNS) if (unit["engine"], unit["format"]) == ("vllm-cuda", "e4m3fn") else 3
    cells = pl.read_parquet(run / "cells.parquet").filter(pl.col("candidate") == unit["candidate"])
    grouped = cells.group_by("layer", "kv_head", "tensor").agg(
        *(pl.col(name).sum() for name in COLUMNS[:num_columns]), pl.col("max_abs").max()
    )
    found = {row[:3]: row[3:] for row in grouped.iter_rows()}
    expected: dict[Any, Any] = {}
    for head, (*counts, largest) in _counts(trace):
        if counts[0]:  # of ranks that share a head the first one counts
            expected.setdefault(head, (*counts[:num_columns], largest))
    assert found == expected, f"{found} is not {expected}"
    return True


def _counts(trace: Path) -> Iterator[tuple[tuple[int, int, str], tuple[Any, ...]]]:
    """Yield (layer, KV head, tensor) → what the columns and `max_abs` must be."""
    last = {}
    for line in (trace / "requests.jsonl").read_text().splitlines():
        record = json.loads(line)
        last[record["request"]] = record
    for store in sorted(trace.glob("rank-*.zarr")):
        rank, commit = (json.loads((store / f"{name}.json").read_text()) for name in ("rank", "commit"))
        group = zarr.open_group(store, mode="r")
        committed = len(commit["chunks"]) * rank["rows_per_chunk"]
        rows = {name: group[f"rows/kv/{name}"][:committed] for name in ("request", "position", "step")}
        kept = _rows_that_count(rows, last)
        for layer in rank["layers"]:
            for tensor in "kv" if layer.get("captured", True) else "":
                path = f"layers/{layer['index']:02d}/{tensor}"
                values = _float32(group[path][:committed], layer["dtype"])
                lost = [
                    number for number, chunk in enumerate(commit["chunks"]) if path in chunk.get("lost", ())
                ]
                own = kept[~np.isin(kept // rank["rows_per_chunk"], lost)]
                for axis, head in enumerate(layer["kv_heads"]):
                    yield (layer["index"], head, tensor), _of_vectors(values[own, axis])


def _rows_that_count(rows: dict[str, NDArray[Any]], requests: dict[int, Any]) -> NDArray[np.int64]:
    """Return the last row of each (request, position) that its request's record covers."""
    place: dict[tuple[int, int], tuple[int, int]] = {}
    for row, (number, position, step) in enumerate(zip(*(rows[name].tolist() for name in rows), strict=True)):
        record = requests.get(number)
        if (
            number != -1
            and record
            and (record["status"] == "running" or position < record["computed_tokens"])
        ):
            place[number, position] = max(place.get((number, position), (-1, -1)), (step, row))
    return np.array(sorted(row for _, row in place.values()), np.int64)


def _float32(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    if dtype == "float32":
        return bits
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _of_vectors(values: NDArray[np.float32]) -> tuple[Any, ...]:
    magnitudes = np.abs(values[np.isfinite(values)]).astype(np.float64)
    counts = (
        len(values), magnitudes.size, values.size - magnitudes.size, (magnitudes > _MAX).sum(),
        (magnitudes > _CLIPS_BEYOND).sum(), ((magnitudes > 0) & (magnitudes <= _FLUSHED_TO)).sum(),
    )  # fmt: skip
    return (*map(int, counts), float(magnitudes.max()) if magnitudes.size else None)
