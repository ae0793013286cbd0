"""A run as large as reports get: 80 layers × 8 KV heads × many candidates, of numbers that compress badly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.runs.schema import TABLES
from kvtrace.trace.strata import position_octave
from support.fabricate_run import fabricate_run, run_record, write_record

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, HEADS = 80, 8
WORKLOADS = ("chat", "code", "language", "retrieval")
_REQUESTS, _ROWS = 64, 768


def large_run(path: Path, num_candidates: int = 16) -> Path:
    """Write the run; every head has its own amax, every candidate its own scales."""
    names = [f"candidate-{number:02}" for number in range(num_candidates)]
    rng = np.random.default_rng(7)
    prompt = rng.integers(20, 8_000, _REQUESTS)
    request = np.sort(rng.integers(0, _REQUESTS, _ROWS))
    position = (rng.random(_ROWS) ** 2 * (prompt[request] + 2_000)).astype(np.int64)
    phase = np.where(position >= prompt[request], "decode", "prefill")
    octave = position_octave(position)
    head = np.arange(LAYERS * HEADS * 2)
    layer, kv_head, tensor = head // (HEADS * 2), head // 2 % HEADS, np.array(["k", "v"])[head % 2]
    codes = 16_512 + rng.normal(0, 90, (head.size, _ROWS)).astype(np.int64)
    limits = 16_512 + rng.integers(60, 330, (num_candidates, head.size))
    fabricate_run(path, _small_tables(names, prompt, request, position, octave, phase))
    write(
        path,
        "vectors",
        source="day",
        row=np.tile(np.arange(_ROWS), head.size),
        layer=np.repeat(layer, _ROWS),
        kv_head=np.repeat(kv_head, _ROWS),
        tensor=np.repeat(tensor, _ROWS),
        absmax_code=codes.reshape(-1),
        has_nonfinite=False,
    )
    amax = magnitude(limits)
    write(
        path,
        "scales",
        source="day",
        candidate=np.repeat(names, head.size),
        layer=np.tile(layer, num_candidates),
        kv_head=np.tile(kv_head, num_candidates),
        tensor=np.tile(tensor, num_candidates),
        scale=amax.reshape(-1) / 448,
        covered_amax=amax.reshape(-1),
        calibrated_amax=amax.reshape(-1),
        max_in_range_code=limits.reshape(-1),
        max_unclipped_code=limits.reshape(-1) + 4,
        origin="made up",
    )
    _write_sweep(path, rng, (layer, kv_head, tensor))
    _write_cells(path, rng, names, (layer, kv_head, tensor), codes, limits, request, octave, phase)
    write_record(path, run_record())
    return path


def _small_tables(
    names: list[str], prompt: Any, request: Any, position: Any, octave: Any, phase: Any
) -> dict[str, Any]:
    return {
        "sampling": [{"source": "day", "sampling_id": 0, "position_stride": 16, "request_fraction": 1.0}],
        "layers": [{"source": "day", "layer": layer, "dtype": "bfloat16"} for layer in range(LAYERS)],
        "requests": [
            {
                "source": "day",
                "request": number,
                "workload": WORKLOADS[number % len(WORKLOADS)],
                "sampled": True,
                "prompt_tokens": int(prompt[number]),
                "output_tokens": 2_000,
                "status": "stop",
            }
            for number in range(_REQUESTS)
        ],
        "rows": [
            {
                "source": "day",
                "row": row,
                "request": int(request[row]),
                "position": int(position[row]),
                "position_octave": int(octave[row]),
                "phase": str(phase[row]),
            }
            for row in range(_ROWS)
        ],
        "candidates": [
            {
                "candidate": name,
                "ordinal": number,
                "kind": "artifact",
                "status": "valid",
                "hypothetical": True,
                "engine": "vllm-cuda",
                "format": "e4m3fn",
                "granularity": "attn_head",
                "artifact": f"scales/{number}",
            }
            for number, name in enumerate(names)
        ],
    }


def _write_sweep(path: Path, rng: Any, heads: Any) -> None:
    steps = np.arange(-8, 25) / 2
    layer, kv_head, tensor = (np.repeat(ids, len(steps)) for ids in heads)
    size = len(layer)
    write(
        path,
        "sweep",
        source="day",
        engine="vllm-cuda",
        format="e4m3fn",
        layer=layer,
        kv_head=kv_head,
        tensor=tensor,
        log2_multiple=np.tile(steps, size // len(steps)),
        scale=np.tile(np.exp2(steps), size // len(steps)) / 448,
        covered_amax=np.tile(np.exp2(steps), size // len(steps)),
        num_values=98_304,
        num_clipped=rng.integers(0, 9_000, size),
        num_flushed=rng.integers(0, 9_000, size),
        sum_sq_signal=1.0,
        sum_sq_error=rng.random(size),
        sum_sq_clip_error=0.0,
    )


def _write_cells(
    path: Path,
    rng: Any,
    candidates: list[str],
    heads: Any,
    codes: Any,
    limits: Any,
    request: Any,
    octave: Any,
    phase: Any,
) -> None:
    layer, kv_head, tensor = heads
    names = sorted(zip(request % len(WORKLOADS), octave, phase, strict=True))
    cells = list(dict.fromkeys(names))
    of_row = np.array(
        [cells.index(name) for name in zip(request % len(WORKLOADS), octave, phase, strict=True)]
    )
    counts = np.bincount(of_row, minlength=len(cells))
    max_code = np.stack([codes[:, of_row == cell].max(axis=1) for cell in range(len(cells))], axis=1)
    shape = (len(candidates), *max_code.shape)
    values = np.broadcast_to(counts * 128, shape)
    beyond = np.stack(
        [
            np.stack(
                [(codes[:, of_row == cell] > limit[:, None]).sum(axis=1) for cell in range(len(cells))],
                axis=1,
            )
            for limit in limits
        ]
    )
    clipped = np.maximum(beyond - rng.integers(0, 3, shape), 0)

    def along(array: Any, axis: int) -> Any:
        shaped = np.asarray(array).reshape([-1 if one == axis else 1 for one in range(3)])
        return np.broadcast_to(shaped, shape).reshape(-1)

    write(
        path,
        "cells",
        source="day",
        candidate=along(candidates, 0),
        layer=along(layer, 1),
        kv_head=along(kv_head, 1),
        tensor=along(tensor, 1),
        workload=along([WORKLOADS[name[0]] for name in cells], 2),
        phase=along([str(name[2]) for name in cells], 2),
        position_octave=along([int(name[1]) for name in cells], 2),
        sampling_id=0,
        num_vectors=along(counts, 2),
        num_values=values.reshape(-1),
        num_nonfinite=0,
        num_out_of_range=beyond.reshape(-1),
        num_clipped=clipped.reshape(-1),
        num_flushed=rng.integers(0, 9, shape).reshape(-1),
        sum_sq_signal=(values * rng.random(shape)).reshape(-1),
        sum_sq_error=(values * rng.random(shape) * 1e-3 + clipped * 1e-4).reshape(-1),
        sum_sq_clip_error=clipped.reshape(-1) * 1e-4,
        max_abs=np.broadcast_to(magnitude(max_code), shape).reshape(-1),
    )


def magnitude(code: Any) -> Any:
    """Return what a bfloat16 code stands for, by its bits."""
    return (np.asarray(code, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


def write(path: Path, name: str, **columns: Any) -> None:
    table = next(table for table in TABLES if table.name == name)
    size = max(np.size(values) for values in columns.values())
    arrays = [
        pa.array(np.broadcast_to(columns[column.name], size)).cast(column.type) for column in table.columns
    ]
    pq.write_table(pa.Table.from_arrays(arrays, schema=table.arrow_schema), path / table.file_name)
