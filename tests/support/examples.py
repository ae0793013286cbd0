"""The examples of the rules, made into what a rule looks at: an artifact beside a trace, or a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvtrace.findings.artifact.audit import audit_context, unit_of
from kvtrace.findings.artifact.observed import observe
from kvtrace.findings.artifact.weights import compare_weights
from kvtrace.findings.run.example import HEADS, SOUND
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace
from support.checkpoints import checkpoint, scheme
from support.fabricate import fabricate_trace, request
from support.fabricate_run import fabricate_run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.artifact.example import ArtifactExample, PerTensor
    from kvtrace.findings.run.example import Clipped, RunExample, Traffic
    from kvtrace.trace.reader import Trace

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 2, 2, 8
POSITIONS, REQUESTS = 4, 4
MAX_MODEL_LEN = 8192
SHIPPED_SCALE = 1.5
UNCLIPPED_CODE, CLIPPED_CODE = 10, 30


def audited(example: ArtifactExample, folder: Path) -> AuditContext:
    """Write the example's checkpoints and its trace, and return what a rule looks at."""
    artifact = load_artifact(_checkpoint(example, folder / "here", 0))
    trace = None if example.amax is None else _trace(example, example.amax, folder / "day.kvtrace")
    compared = None
    if example.weights is not None:
        compared = compare_weights(artifact.path, _checkpoint(example, folder / "there", 1))
    return audit_context(
        artifact,
        trace,
        backend=example.backend,
        weights=compared,
        skip_layers=example.unquantized,
        calibrated_at_length=example.calibrated_at_length,
        observed=observe(trace, unit_of(artifact)) if trace else None,
        cache_dtype=example.cache_dtype,
    )


def _checkpoint(example: ArtifactExample, path: Path, side: int) -> Path:
    tensors: dict[str, Any] = {
        f"model.layers.{name[0]}.self_attn.{name[2]}_scale": value for name, value in example.scales.items()
    }
    tensors |= example.names
    if example.weights is not None:
        tensors["model.layers.0.self_attn.k_proj.weight"] = torch.full((2, 2), example.weights[side])
    is_per_head = any(isinstance(value, tuple) for value in example.scales.values())
    declared = scheme(strategy="attn_head" if is_per_head else "tensor") | example.scheme
    quantization = {"quant_method": "compressed-tensors", "kv_cache_scheme": declared}
    model = {
        "num_hidden_layers": example.num_layers,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_HEADS,
        "head_dim": _head_dim(example),
    }
    checkpoint(
        path,
        tensors,
        quantization=quantization if example.quantization is None else example.quantization,
        model=model | example.declared,
        dtype=getattr(torch, example.stored_as),
    )
    if example.manifest is not None:
        (path / "kvtrace.json").write_text(json.dumps(_manifest(example.manifest)))
    return path


def _manifest(given: Mapping[str, Any]) -> dict[str, Any]:
    num_tokens = POSITIONS * REQUESTS
    cell = {"phase": "prefill", "position_octave": 0, "num_tokens": num_tokens, "num_requests": REQUESTS}
    rows = {
        "num_requests": REQUESTS,
        "num_tokens": num_tokens,
        "max_position": POSITIONS - 1,
        "max_prompt_tokens": given.get("max_prompt_tokens", POSITIONS),
        "max_output_tokens": 0,
        "cells": [cell | {"workload": given.get("workload", "chat")}],
    }
    dataset = {
        "traces": [],
        "workloads": [],
        "max_position": None,
        "phase": None,
        "holdout": 0.0,
        "holdout_workloads": [],
        "seed": 0,
        "duplicates_comparable": True,
        "calibration": rows,
        "held_out": None,
    }
    recipe = {
        "method": "absmax",
        "percentile": None,
        "headroom": 1.0,
        "granularity": "tensor",
        "merge_kv": False,
        "power_of_two": False,
        "engine": "vllm-cuda",
    }
    model = {
        "name": "fabricated",
        "dtype": "bfloat16",
        "num_layers": NUM_LAYERS,
        "num_kv_heads": NUM_HEADS,
        "head_dim": HEAD_DIM,
        "max_model_len": given.get("max_model_len", MAX_MODEL_LEN),
    }
    return {
        "schema_version": "1.0",
        "kvtrace_version": "0",
        "created_at": given.get("created_at", 1.7e9),
        "model": model,
        "dataset": dataset,
        "recipe": recipe,
        "libraries": {},
        "groups": [],
        "evaluation": [],
        "scales_sha256": given.get("scales_sha256", ""),
    }


def _head_dim(example: ArtifactExample) -> int:
    return HEAD_DIM if example.cache_dtype == "fp8" else 2 * HEAD_DIM


def _trace(example: ArtifactExample, amax: PerTensor, path: Path) -> Trace:
    num_rows, head_dim, live = POSITIONS * REQUESTS, _head_dim(example), example.live
    share = np.linspace(1 / (num_rows * head_dim), 1, num_rows * head_dim).reshape(num_rows, 1, head_dim)
    largest = {(int(name[0]), name[2]): np.array(_per_head(found)) for name, found in amax.items()}
    fabricate_trace(
        path,
        {key: share * of_heads[:, None] for key, of_heads in largest.items()},
        request_of_row=[row // POSITIONS for row in range(num_rows)],
        position_of_row=[row % POSITIONS for row in range(num_rows)],
        requests=[request(number, prompt_tokens=POSITIONS) for number in range(REQUESTS)],
        kv_cache_dtype="auto" if live is None else "fp8_e4m3",
        scales=None if live is None else {(int(n[0]), n[2]): _per_head(one) for n, one in live.items()},
        backend="FLASH_ATTN",
    )
    return open_trace(path)


def _per_head(found: float | tuple[float, ...]) -> tuple[float, ...]:
    return found if isinstance(found, tuple) else (found,) * NUM_HEADS


def run_of(example: RunExample, path: Path) -> Path:
    """Write the run of an example."""
    names = ["shipped"] if example.invalid_as is None else []
    candidates = [
        {
            "candidate": "shipped",
            "kind": "artifact",
            "status": "valid" if example.invalid_as is None else "invalid",
            "reason": example.invalid_as and "its scales cannot be used",
            "reason_id": example.invalid_as,
            "hypothetical": example.live is None,
            "granularity": "tensor",
            "artifact": "scales",
        }
    ]
    if example.live is not None:
        names.append("effective")
        candidates.append({"candidate": "effective", "kind": "effective", "status": "valid"})
    if example.cache_dtype is not None:
        candidates.append(
            {
                "candidate": "other cache",
                "kind": "format",
                "status": "valid",
                "engine": "vllm",
                "format": example.cache_dtype,
            }
        )
    scale_of = {"shipped": SHIPPED_SCALE, "effective": example.live}
    tables: dict[str, list[dict[str, Any]]] = {
        "candidates": [
            {"ordinal": number, "engine": "vllm-cuda", "format": example.fp8_format} | one
            for number, one in enumerate(candidates)
        ],
        "sampling": [
            {"source": "day", "sampling_id": 0, "position_stride": 1, "request_fraction": 1.0},
        ],
        "scales": [
            _of_head(head, candidate)
            | {"scale": scale_of[candidate], "covered_amax": 448.0, "max_unclipped_code": UNCLIPPED_CODE}
            for candidate in names
            for head in HEADS
        ],
        "cells": [
            _of_head(head, candidate)
            | {"workload": "chat", "phase": "prefill", "position_octave": 4, "num_vectors": 1}
            | SOUND
            | example.sums.get(head, {})
            for candidate in names
            for head in HEADS
        ],
        "ordinary_channels": [
            _of_head(head, candidate) | {"workload": "chat"} | dict(sums)
            for candidate in names
            for head, sums in example.ordinary.items()
        ],
        "findings": [
            {
                "source": "day",
                "candidate": "shipped",
                "ordinal": number,
                "message": "as the audit says",
                "action": "as it says",
            }
            | dict(one)
            for number, one in enumerate(example.audit)
        ],
        "requests": [],
        "rows": [],
        "vectors": [],
    }
    for traffic in example.traffic:
        _add(tables, traffic, example.clipped)
    return fabricate_run(path, tables)


def _of_head(head: tuple[int, int, str], candidate: str | None = None) -> dict[str, Any]:
    layer, kv_head, tensor = head
    place = {"source": "day", "layer": layer, "kv_head": kv_head, "tensor": tensor}
    return place if candidate is None else place | {"candidate": candidate}


def _add(
    tables: dict[str, list[dict[str, Any]]],
    traffic: Traffic,
    clipped: Mapping[tuple[int, int, str], Clipped],
) -> None:
    for _ in range(traffic.requests):
        number = len(tables["requests"])
        tables["requests"].append(
            {
                "source": "day",
                "request": number,
                "workload": traffic.workload,
                "sampled": True,
                "prompt_tokens": traffic.prompt_tokens,
                "num_rows": len(traffic.positions),
                "num_dropped": traffic.num_dropped,
                "status": "stop",
            }
        )
        for position in traffic.positions:
            row = len(tables["rows"])
            tables["rows"].append(
                {
                    "source": "day",
                    "row": row,
                    "request": number,
                    "position": position,
                    "position_octave": position.bit_length() - 1,
                    "phase": "decode" if position >= traffic.prompt_tokens else "prefill",
                }
            )
            for head in HEADS:
                is_clipped = head in clipped and _is_there(clipped[head], traffic, position)
                code = CLIPPED_CODE if is_clipped else UNCLIPPED_CODE
                tables["vectors"].append(_of_head(head) | {"row": row, "absmax_code": code})


def _is_there(where: Clipped, traffic: Traffic, position: int) -> bool:
    step = position - traffic.prompt_tokens
    return (
        where.workload in (None, traffic.workload)
        and position >= where.from_position
        and (where.from_step is None or step >= where.from_step)
        and (not where.in_prefill or step < 0)
    )
