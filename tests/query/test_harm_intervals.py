"""The intervals of harm and of its ratio to fresh scales, against a jackknife written out in numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from support.fabricate_run import fabricate_run, read_tables

from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.runs.open import open_run

INPUT = Path(__file__).parents[1] / "queries/harm/input"
NAMES = ("shipped", "fresh scales")
WEIGHTS = np.array([0.15625, 0.5])
"""w_l of the input's two layers."""


def random_run(folder: Path, num_requests: int) -> tuple[Path, Any, Any]:
    """Return a run of requests with a query each, o2 [layer, request], do2 [candidate, layer, request]."""
    random = np.random.default_rng(num_requests)
    o2 = random.uniform(0.5, 2, (2, num_requests))
    do2 = random.lognormal(-2, 1, (2, 2, num_requests))
    tables = read_tables(INPUT)
    (first,) = [one for one in tables["requests"] if str(one["request"]) == "0"]
    tables["requests"] = [first | {"request": number} for number in range(num_requests)]
    heads = tables["attention"][0]
    layers = tables["attention_layers"][0]
    tables["attention"] = [
        heads | {"candidate": name, "layer": layer, "request": number}
        for name in NAMES
        for layer in range(2)
        for number in range(num_requests)
    ]
    tables["attention_layers"] = [
        layers
        | {"candidate": name, "layer": layer, "request": number}
        | {"projected_o2": o2[layer, number], "projected_do2": do2[which, layer, number]}
        for which, name in enumerate(NAMES)
        for layer in range(2)
        for number in range(num_requests)
    ]
    return fabricate_run(folder / "r.run", tables), o2, do2


def harm(o2: Any, do2: Any) -> Any:
    """Return R by candidate: Σ w_l · Σ ‖W_O Δo‖² / Σ ‖W_O o‖²."""
    return (WEIGHTS * do2.sum(axis=-1) / o2.sum(axis=-1)).sum(axis=-1)


def half_width(logs: Any, whole: float) -> float:
    """Return half of the 95 % interval of a logarithm: delete a group, Student's t."""
    groups = len(logs)
    spread = np.sqrt((groups - 1) / groups * ((logs - whole) ** 2).sum())
    return float(student.ppf(0.975, groups - 1) * spread)


@pytest.mark.parametrize("num_requests", [8, 13, 37])
def test_intervals_of_harm_are_those_of_a_jackknife_over_groups_of_requests(
    tmp_path: Path, num_requests: int
) -> None:
    run, o2, do2 = random_run(tmp_path, num_requests)
    rows = {row["candidate"]: row for row in asked(run)}
    group = np.arange(num_requests) % 16
    without = np.array([harm(o2[:, group != g], do2[..., group != g]) for g in np.unique(group)])
    whole = harm(o2, do2)
    for place, name in enumerate(NAMES):
        factor = np.exp(half_width(np.log(without[:, place]), np.log(whole[place])))
        assert rows[name]["harm"] == pytest.approx(whole[place], rel=1e-9)
        assert rows[name]["harm_low"] == pytest.approx(whole[place] / factor, rel=1e-6)
        assert rows[name]["harm_high"] == pytest.approx(whole[place] * factor, rel=1e-6)
    ratio = whole[0] / whole[1]
    paired = np.exp(half_width(np.log(without[:, 0] / without[:, 1]), np.log(ratio)))
    assert rows["shipped"]["ratio"] == pytest.approx(ratio, rel=1e-9)
    assert rows["shipped"]["ratio_low"] == pytest.approx(ratio / paired, rel=1e-6)
    assert rows["shipped"]["ratio_high"] == pytest.approx(ratio * paired, rel=1e-6)
    assert rows["fresh scales"]["ratio_low"] == pytest.approx(1)


def test_fewer_than_eight_requests_have_no_interval(tmp_path: Path) -> None:
    run, _, _ = random_run(tmp_path, 7)
    assert {row["harm_low"] for row in asked(run)} == {None}


def asked(run: Path) -> list[dict[str, Any]]:
    connection = connect_with_views(open_run(run))
    found = run_query(connection, find_query("harm")).records()
    return [row for row in found if row["candidate"] in NAMES]
