"""Runs for the gate's tests: requests, and which of their vectors leave the range of which candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.fabricate_run import fabricate_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvtrace.runs.record import RunRecord

IN_RANGE, OUT_OF_RANGE, CLIPPED = 100, 150, 300
LARGEST_IN_RANGE, LARGEST_UNCLIPPED = 120, 200


@dataclass(frozen=True)
class Traffic:
    """Equal requests of one workload, one row at each of `positions`."""

    workload: str
    num_requests: int
    positions: Sequence[int] = tuple(range(10))
    prompt_tokens: int = 8
    output_tokens: int = 2
    clipped: Mapping[tuple[int, int, str], Sequence[int]] = ()  # type: ignore[assignment]
    """(layer, kv_head, tensor) → clipped vectors in each request, from its first row on; the rest 0."""
    outside: Mapping[tuple[int, int, str], Sequence[int]] = ()  # type: ignore[assignment]
    num_dropped: int = 0
    num_nonfinite: int = 0
    """Requests, from the first on, whose first vector of every head holds a NaN."""
    num_without_finite: int = 0
    """Requests, from the first on, whose vectors hold nothing else, in every head and row."""
    sampling_id: int = 0
    source: str = "day"
    values: Mapping[str, Any] = ()  # type: ignore[assignment]
    """Columns of cells.parquet, for every head."""


HEADS = [(0, 0, "k"), (0, 0, "v"), (0, 1, "k"), (0, 1, "v")]
CANDIDATES = [
    {"candidate": "bf16", "ordinal": 0, "kind": "bf16", "status": "valid", "hypothetical": True},
    {
        "candidate": "cal",
        "ordinal": 1,
        "kind": "artifact",
        "status": "valid",
        "hypothetical": True,
        "engine": "vllm-cuda",
        "format": "e4m3fn",
        "granularity": "attn_head",
    },
]
ONLINE = {
    "candidate": "int8-per-token-head",
    "ordinal": 9,
    "kind": "online",
    "status": "valid",
    "hypothetical": True,
    "engine": "int8-per-token-head",
    "format": "int8",
    "granularity": "token_head",
}


def gate_run(
    path: Path,
    *traffic: Traffic,
    candidates: Sequence[Mapping[str, Any]] = CANDIDATES,
    thresholds: Mapping[str, tuple[int, int]] | None = None,
    head_thresholds: Mapping[tuple[str, tuple[int, int, str]], tuple[int, int]] | None = None,
    heads: Sequence[tuple[int, int, str]] = HEADS,
    unquantized: Mapping[str, Sequence[int]] | None = None,
    strides: Sequence[int] = (1,),
    without: Sequence[tuple[int, int, str]] = (),
    sources_of: Mapping[str, Sequence[str]] | None = None,
    groups: Sequence[Mapping[str, Any]] = (),
    findings: Sequence[Mapping[str, Any]] = (),
    calibrated_amax: Mapping[tuple[int, int, str], float] | None = None,
    record: RunRecord | None = None,
) -> Path:
    """Write a run. thresholds: candidate → (largest in-range code, largest unclipped code).

    head_thresholds: the same for (candidate, head). unquantized: candidate → layers it leaves alone.
    without: heads that have no vector at all. sources_of: candidate → the traces in which it exists; all.
    groups, findings: rows of these tables. calibrated_amax: of the heads that have one.
    """
    sources = sorted({part.source for part in traffic})
    tables: dict[str, list[dict[str, Any]]] = {
        "sampling": [
            {"source": source, "sampling_id": number, "position_stride": stride, "request_fraction": 1.0}
            for source in sources
            for number, stride in enumerate(strides)
        ],
        "requests": [],
        "rows": [],
        "candidates": [dict(one) for one in candidates],
        "scales": [
            _scale(
                source,
                one,
                head,
                (head_thresholds or {}).get((one["candidate"], head))
                or (thresholds or {}).get(one["candidate"], (LARGEST_IN_RANGE, LARGEST_UNCLIPPED)),
                (unquantized or {}).get(one["candidate"], ()),
            )
            | {"calibrated_amax": (calibrated_amax or {}).get(head) if one["kind"] == "artifact" else None}
            for one in candidates
            if one["status"] == "valid"
            for source in (sources_of or {}).get(one["candidate"], sources)
            for head in heads
        ],
        "cells": [],
        "vectors": [],
        "groups": [dict(one) for one in groups],
        "findings": [dict(one) for one in findings],
    }
    for part in traffic:
        _add(tables, part, [head for head in heads if head not in without])
    return fabricate_run(path, tables, record)


def _scale(
    source: str,
    candidate: Mapping[str, Any],
    head: tuple[int, int, str],
    largest: tuple[int, int],
    unquantized: Sequence[int],
) -> dict[str, Any]:
    layer, kv_head, tensor = head
    in_range, unclipped = largest
    is_left = candidate["kind"] in ("bf16", "online") or layer in unquantized
    return {
        "source": source,
        "candidate": candidate["candidate"],
        "layer": layer,
        "kv_head": kv_head,
        "tensor": tensor,
        "scale": None if is_left else 0.5,
        "covered_amax": None if is_left else 224.0,
        "max_in_range_code": None if is_left else in_range,
        "max_unclipped_code": None if is_left else unclipped,
        "origin": candidate["candidate"]
        if candidate["kind"] == "online"
        else "skipped"
        if is_left
        else "given",
    }


def _add(
    tables: dict[str, list[dict[str, Any]]],
    part: Traffic,
    heads: Sequence[tuple[int, int, str]],
) -> None:
    for number in range(part.num_requests):
        request = len(tables["requests"])
        tables["requests"].append(
            {
                "source": part.source,
                "request": request,
                "workload": part.workload,
                "sampled": True,
                "prompt_tokens": part.prompt_tokens,
                "output_tokens": part.output_tokens,
                "num_rows": len(part.positions),
                "num_dropped": part.num_dropped,
                "status": "stop",
                "sampling_id": part.sampling_id,
            }
        )
        for place, position in enumerate(part.positions):
            row = len(tables["rows"])
            tables["rows"].append(
                {
                    "source": part.source,
                    "row": row,
                    "request": request,
                    "position": position,
                    "position_octave": max(position, 1).bit_length() - 1,
                    "phase": "decode" if position >= part.prompt_tokens else "prefill",
                    "sampling_id": part.sampling_id,
                }
            )
            tables["vectors"] += [
                {
                    "source": part.source,
                    "row": row,
                    "layer": layer,
                    "kv_head": kv_head,
                    "tensor": tensor,
                    "absmax_code": _code(part, (layer, kv_head, tensor), number, place),
                    "has_nonfinite": number < part.num_without_finite
                    or (number < part.num_nonfinite and place == 0),
                }
                for layer, kv_head, tensor in heads
            ]
    if part.values:
        tables["cells"] += [
            {
                "source": part.source,
                "candidate": one["candidate"],
                "layer": layer,
                "kv_head": kv_head,
                "tensor": tensor,
                "workload": part.workload,
                "phase": "prefill",
                "position_octave": 0,
                "sampling_id": part.sampling_id,
                **dict(part.values),
            }
            for one in tables["candidates"]
            if one["status"] == "valid"
            for layer, kv_head, tensor in heads
        ]


def _code(part: Traffic, head: tuple[int, int, str], number: int, place: int) -> int | None:
    if number < part.num_without_finite:
        return None
    clipped = dict(part.clipped).get(head, ())
    outside = dict(part.outside).get(head, ())
    if number < len(clipped) and place < clipped[number]:
        return CLIPPED
    return OUT_OF_RANGE if number < len(outside) and place < outside[number] else IN_RANGE
