"""Limits on harm: of the residual stream, and paired against a baseline; beside the limits of segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fabricate_run import fabricate_run, read_tables
from support.gate_checks import invoke, policy
from support.gate_runs import Traffic, gate_run

from kvtrace.errors import InputError
from kvtrace.gate.harm import decide_harm
from kvtrace.gate.outcome import HarmOutcome, Verdict
from kvtrace.gate.policy import HarmLimits, load_policy
from kvtrace.query import connect_with_views
from kvtrace.runs.open import open_run

INPUT = Path(__file__).parents[1] / "queries/harm/input"


def harm_run(folder: Path, of_request: list[float], *, fresh: float = 0.5, projected: bool = True) -> Any:
    """Return a connection to a run of one layer, w_l 0.1: requests with ‖W_O o‖² = 1 and such errors."""
    tables = read_tables(INPUT)
    tables["layers"] = [tables["layers"][0] | {"residual_weight": 0.1}]
    (first,) = [one for one in tables["requests"] if str(one["request"]) == "0"]
    tables["requests"] = [first | {"request": number} for number in range(len(of_request))]
    errors = {
        "bf16": [0.0] * len(of_request),
        "shipped": of_request,
        "fresh scales": [fresh] * len(of_request),
    }
    heads, layers = tables["attention"][0], tables["attention_layers"][0]
    tables["attention"] = [
        heads | {"candidate": name, "request": number, "sum_do2": error}
        for name, of_candidate in errors.items()
        for number, error in enumerate(of_candidate)
    ]
    tables["attention_layers"] = [
        layers | {"candidate": name, "request": number, "projected_o2": 1, "projected_do2": error}
        for name, of_candidate in errors.items()
        for number, error in enumerate(of_candidate)
    ]
    if not projected:
        del tables["attention_layers"]
    tables["candidates"] = [one for one in tables["candidates"] if one["candidate"] in errors]
    return connect_with_views(open_run(fabricate_run(folder / "r.run", tables)))


def decided(connection: Any, candidate: str = "shipped", **limits: Any) -> HarmOutcome:
    (found,) = decide_harm(connection, candidate, HarmLimits(**limits))
    return found


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [(0.099, Verdict.breached), (0.1001, Verdict.within)],
)
def test_requests_that_agree_decide_as_their_harm_does(
    tmp_path: Path, bound: float, verdict: Verdict
) -> None:
    found = decided(harm_run(tmp_path, [1.0] * 8), max_residual_error=bound)
    assert (found.value, found.low, found.high) == (pytest.approx(0.1),) * 3
    assert found.verdict is verdict


def test_an_interval_across_the_limit_decides_nothing(tmp_path: Path) -> None:
    found = decided(harm_run(tmp_path, [0.5, 1.5] * 4), max_residual_error=0.11)
    assert found.value == pytest.approx(0.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.1 < 0.11 < found.high
    assert (found.verdict, found.reason) == (Verdict.not_enough, "its interval reaches across the limit")


def test_a_ratio_is_paired_with_the_baseline(tmp_path: Path) -> None:
    connection = harm_run(tmp_path, [1.0] * 8)
    assert decided(connection, max_ratio=1.9).verdict is Verdict.breached  # 1 over 0.5
    found = decided(connection, max_ratio=2.1)
    assert (found.value, found.verdict, found.baseline) == (pytest.approx(2), Verdict.within, "fresh scales")
    assert decided(connection, max_ratio=1.0, baseline="shipped").verdict is Verdict.within
    assert decided(connection, max_ratio=1.0, baseline="bf16").verdict is Verdict.not_enough


def test_what_harms_nothing_is_within_any_limit(tmp_path: Path) -> None:
    connection = harm_run(tmp_path, [1.0] * 8)
    assert decided(connection, "bf16", max_residual_error=1e-9).verdict is Verdict.within


def test_few_requests_and_another_kind_of_harm_decide_nothing(tmp_path: Path) -> None:
    few = decided(harm_run(tmp_path, [1.0] * 7), max_residual_error=0.01)
    assert (few.verdict, few.low) == (Verdict.not_enough, None)
    assert "8 requests" in (few.reason or "")
    (tmp_path / "other").mkdir()
    heads = decided(harm_run(tmp_path / "other", [1.0] * 8, projected=False), max_residual_error=0.01)
    assert (heads.verdict, heads.value) == (Verdict.not_enough, None)
    assert "--checkpoint" in (heads.reason or "")


def test_a_run_without_harm_and_a_baseline_that_is_not_there_are_told_apart(tmp_path: Path) -> None:
    bare = connect_with_views(
        open_run(fabricate_run(tmp_path / "b.run", read_tables(INPUT.parents[1] / "input")))
    )
    assert (
        decided(bare, max_residual_error=0.1).reason == "the run holds no harm; replay a trace with queries"
    )
    with pytest.raises(InputError, match="no valid candidate of that name"):
        decided(bare, max_ratio=1.0, baseline="nobody")


def test_a_check_decides_by_limits_on_harm_too(tmp_path: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 30))
    segments = '[[segments]]\nname = "all"\n'
    assert (
        invoke("check", run, "--policy", policy(tmp_path, "clipped_frac = 1.0", segments=segments)).exit_code
        == 0
    )
    limited = policy(
        tmp_path,
        "clipped_frac = 1.0",
        segments=f"{segments}[harm]\nmax_residual_error = 0.01\nmax_ratio = 1.5",
    )
    limits = load_policy(limited).policy.harm
    assert limits == HarmLimits(max_residual_error=0.01, max_ratio=1.5, baseline="fresh scales")
    limited.write_text(limited.read_text().replace("max_ratio = 1.5", ""))
    found = invoke("check", run, "--policy", limited)
    assert found.exit_code == 3
    assert "HARM   over all traffic with queries" in found.output
    assert "NOT ENOUGH COVERAGE: max_residual_error at most 1.0 %: not measured" in found.output
