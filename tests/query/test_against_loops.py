"""Queries on random runs give what loops give: two traces, two sampling rules, skipped layers, NULLs."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from support.fabricate_run import fabricate_run, run_record, source_record
from support.random_run import Row, Tables, random_tables

from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def expected(tables: Tables, group: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], Row]:
    """Every share and count of every group, by loops. group: from a row's columns to the group's key."""
    weight = {
        (one["source"], one["sampling_id"]): one["position_stride"] / one["request_fraction"]
        for one in tables["sampling"]
    }
    requests = {(one["source"], one["request"]): one for one in tables["requests"]}
    rows = {
        (one["source"], one["row"]): requests[one["source"], one["request"]] | one for one in tables["rows"]
    }
    sums: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cell in tables["cells"]:
        found = sums[group(cell)] if group(cell) else {}
        w = weight[cell["source"], cell["sampling_id"]]
        for name in ("values", "out_of_range", "clipped", "flushed"):
            found[f"num_{name}"] = found.get(f"num_{name}", 0) + cell[f"num_{name}"]
            found[f"w_{name}"] = found.get(f"w_{name}", 0) + w * cell[f"num_{name}"]
        for name in ("signal", "error"):
            found[f"w_{name}"] = found.get(f"w_{name}", 0) + w * cell[f"sum_sq_{name}"]
    codes = [
        rows[one["source"], one["row"]] | one for one in tables["vectors"] if one["absmax_code"] is not None
    ]
    for scale in tables["scales"]:
        for vector in codes:
            if all(vector[name] == scale[name] for name in ("source", "layer", "kv_head", "tensor")):
                found = sums[group(vector | scale)]
                w = weight[vector["source"], vector["sampling_id"]]
                limit = math.inf if scale["scale"] is None else scale["max_in_range_code"]
                beyond = vector["absmax_code"] > limit
                clipped = vector["absmax_code"] > limit + 4
                found["num_vectors"] += 1
                found["num_vectors_out_of_range"] += beyond
                found["num_vectors_clipped"] += clipped
                found["w_vectors"] += w
                found["w_vectors_out_of_range"] += w * beyond
                found["w_vectors_clipped"] += w * clipped
    return {key: dict(found) for key, found in sums.items() if "bf16" not in key}


VALUE_QUERIES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "rank_heads": ({"top": "1000"}, ("candidate", "tensor", "layer", "kv_head")),
    "by_position": ({}, ("candidate", "tensor", "phase", "position_octave")),
    "by_workload": ({}, ("candidate", "tensor", "workload")),
    "compare_candidates": ({}, ("candidate", "tensor")),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", VALUE_QUERIES)
def test_a_query_gives_what_loops_give(tmp_path: Path, name: str, seed: int) -> None:
    parameters, key = VALUE_QUERIES[name]
    tables = random_tables(seed)
    record = run_record(source_record("monday"), source_record("friday"))
    connection = connect_with_views(open_run(fabricate_run(tmp_path / "random.run", tables, record)))
    wanted = expected(tables, lambda row: tuple(row[name] for name in key))
    found = {
        tuple(record[name] for name in key): record
        for record in run_query(connection, find_query(name), parameters).records()
        if record["candidate"] != "bf16"
    }
    assert found.keys() == wanted.keys()
    for group, sums in wanted.items():
        for count in (name for name in sums if name.startswith("num_")):
            assert found[group][count] == sums[count], (group, count)
        for share in ("out_of_range", "clipped", "flushed"):
            assert found[group][f"{share}_frac"] == pytest.approx(sums[f"w_{share}"] / sums["w_values"])
        for share in ("vectors_out_of_range", "vectors_clipped"):
            assert found[group][f"{share}_frac"] == pytest.approx(sums[f"w_{share}"] / sums["w_vectors"])
        sqnr_db = 10 * math.log10(sums["w_signal"] / sums["w_error"])
        assert found[group]["sqnr_db"] == pytest.approx(sqnr_db)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["by_request", "by_exact_position", "by_generation_step"])
def test_a_vector_query_gives_what_loops_give(tmp_path: Path, name: str, seed: int) -> None:
    parameters, key, place = {
        "by_request": ({"top": "1000"}, ("source", "request"), lambda row: (row["source"], row["request"])),
        "by_exact_position": (
            {"width": "7"},
            ("phase", "position_from"),
            lambda row: (row["phase"], row["position"] // 7 * 7),
        ),
        "by_generation_step": (
            {"width": "3"},
            ("step_from",),
            lambda row: ((row["position"] - row["prompt_tokens"]) // 3 * 3,),
        ),
    }[name]
    tables = random_tables(seed)
    record = run_record(source_record("monday"), source_record("friday"))
    connection = connect_with_views(open_run(fabricate_run(tmp_path / "random.run", tables, record)))
    wanted = expected(
        tables | {"cells": []}, lambda row: (row["candidate"], row["tensor"], *place(row), row["phase"])
    )
    if name == "by_generation_step":
        wanted = {group: sums for group, sums in wanted.items() if group[-1] == "decode"}
    pooled: dict[tuple[Any, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for group, sums in wanted.items():
        for count, amount in sums.items():
            pooled[group[:-1]][count] += amount
    found = {
        (record["candidate"], record["tensor"], *(record[name] for name in key)): record
        for record in run_query(connection, find_query(name), parameters).records()
    }
    assert found.keys() == pooled.keys()
    for group, sums in pooled.items():
        assert found[group]["num_vectors"] == sums["num_vectors"]
        assert found[group]["num_vectors_out_of_range"] == sums["num_vectors_out_of_range"]
        assert found[group]["num_vectors_clipped"] == sums["num_vectors_clipped"]
        share = sums["w_vectors_clipped"] / sums["w_vectors"]
        assert found[group]["vectors_clipped_frac"] == pytest.approx(share)
