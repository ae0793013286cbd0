"""Tables of a run at random: two traces, two sampling rules, skipped layers, NULLs."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

Row = dict[str, Any]
Tables = dict[str, list[Row]]
HEADS = [(layer, kv_head, tensor) for layer in range(2) for kv_head in range(2) for tensor in ("k", "v")]
CANDIDATES = ("bf16", "narrow", "wide", "skipping")


def random_tables(seed: int) -> Tables:
    """Two traces with two sampling rules each; `skipping` leaves layer 1 unquantized."""
    rng = random.Random(seed)
    tables: Tables = {name: [] for name in ("sampling", "requests", "rows", "scales", "cells", "vectors")}
    tables["candidates"] = [
        {"candidate": name, "ordinal": n, "kind": "artifact" if n else "bf16", "status": "valid"}
        for n, name in enumerate(CANDIDATES)
    ]
    for source in ("monday", "friday"):
        for rule, (stride, fraction) in enumerate(((4, 1.0), (16, 0.5))):
            tables["sampling"].append(
                {
                    "source": source,
                    "sampling_id": rule,
                    "position_stride": stride,
                    "request_fraction": fraction,
                }
            )
        for request in range(6):
            _add_request(tables, rng, source, request)
        for candidate in CANDIDATES:
            for layer, kv_head, tensor in HEADS:
                plain = candidate == "bf16" or (candidate == "skipping" and layer == 1)
                limit = None if plain else rng.randint(40, 95)
                tables["scales"].append(
                    head(source, layer, kv_head, tensor)
                    | {"candidate": candidate, "scale": None if plain else 0.5, "covered_amax": limit}
                    | {"max_in_range_code": limit, "max_unclipped_code": None if plain else limit + 4}
                )
    _add_cells(tables, rng)
    return tables


def _add_request(tables: Tables, rng: random.Random, source: str, request: int) -> None:
    prompt_tokens, rule = rng.randint(1, 40), rng.randint(0, 1)
    tables["requests"].append(
        {
            "source": source,
            "request": request,
            "workload": rng.choice(("chat", "code")),
            "sampled": True,
            "sampling_id": rule,
            "prompt_tokens": prompt_tokens,
            "output_tokens": 20,
            "num_dropped": rng.randint(0, 1),
        }
    )
    for position in rng.sample(range(prompt_tokens + 20), 8 if prompt_tokens > 1 else 1):
        row = sum(one["source"] == source for one in tables["rows"])
        tables["rows"].append(
            {
                "source": source,
                "row": row,
                "request": request,
                "position": position,
                "position_octave": math.floor(math.log2(max(position, 1))),
                "phase": "decode" if position >= prompt_tokens else "prefill",
                "sampling_id": rule,
            }
        )
        for layer, kv_head, tensor in HEADS:
            code = None if rng.random() < 0.05 else rng.randint(0, 110)
            tables["vectors"].append(head(source, layer, kv_head, tensor) | {"row": row, "absmax_code": code})


def _add_cells(tables: Tables, rng: random.Random) -> None:
    workloads = {(one["source"], one["request"]): one["workload"] for one in tables["requests"]}
    cells = defaultdict(int)
    for one in tables["rows"]:
        workload = workloads[one["source"], one["request"]]
        cells[one["source"], workload, one["phase"], one["position_octave"], one["sampling_id"]] += 1
    for (source, workload, phase, octave, rule), size in cells.items():
        for candidate in CANDIDATES:
            for layer, kv_head, tensor in HEADS:
                beyond = 0 if candidate == "bf16" else rng.randint(0, 3 * size)
                tables["cells"].append(
                    head(source, layer, kv_head, tensor)
                    | {
                        "candidate": candidate,
                        "workload": workload,
                        "phase": phase,
                        "position_octave": octave,
                    }
                    | {"sampling_id": rule, "num_vectors": size, "num_values": 8 * size}
                    | {"num_out_of_range": beyond, "num_clipped": rng.randint(0, beyond)}
                    | {"num_flushed": rng.randint(0, size), "sum_sq_signal": rng.uniform(1, 9)}
                    | {"sum_sq_error": 0.0 if candidate == "bf16" else rng.uniform(0.1, 0.9)}
                    | {"sum_sq_clip_error": 0.05, "max_abs": rng.uniform(1, 99)}
                )


def head(source: str, layer: int, kv_head: int, tensor: str) -> Row:
    return {"source": source, "layer": layer, "kv_head": kv_head, "tensor": tensor}
