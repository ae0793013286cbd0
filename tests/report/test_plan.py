"""Layer plans: the fewest layers to keep native, what that removes, costs, and how it is served."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.attention_trace import trace_with_queries
from support.fabricate_run import fabricate_run, read_tables
from support.run_cli import kvtrace

from kvtrace.report.harm.plan import fewest_layers, plan_layers
from kvtrace.runs.open import open_run

HARM_INPUT = Path(__file__).parents[1] / "queries/harm/input"


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`shipped` harms 0.8 x 0.15625 = 0.125 in layer 0 and 0.2 x 0.5 = 0.1 in layer 1."""
    return fabricate_run(tmp_path_factory.mktemp("by-hand") / "r.run", read_tables(HARM_INPUT))


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a trace with queries, and the run of int8_per_token_head on it."""
    folder = tmp_path_factory.mktemp("replayed")
    trace = trace_with_queries(folder / "t.kvtrace")
    options = ("--cache-dtype", "int8_per_token_head")
    assert kvtrace("replay", trace, *options, "-o", folder / "r.run").returncode == 0
    return trace, folder / "r.run"


@given(
    st.dictionaries(st.integers(0, 7), st.integers(0, 64), min_size=1, max_size=8),
    st.integers(0, 200),
)
def test_no_fewer_layers_would_do_and_these_do(harm: dict[int, int], bound: int) -> None:
    kept = fewest_layers(harm, bound)
    left = sum(value for layer, value in harm.items() if layer not in kept)
    assert left <= bound
    for fewer in range(len(kept)):
        for others in combinations(harm, fewer):
            assert sum(harm[layer] for layer in harm if layer not in others) > bound


def test_the_layer_that_harms_most_is_kept_and_only_its_share_is_promised(by_hand: Path) -> None:
    plan = plan_layers(open_run(by_hand), "shipped", bound=0.11)
    first = plan.plans[0]
    assert (plan.knowledge, plan.harm) == ("residual", pytest.approx(0.225))
    assert (first.chosen, first.layers) == ("by harm", (0,))
    assert first.harm == pytest.approx(0.1)
    assert first.removed == pytest.approx(0.125 / 0.225)
    assert (plan.bytes_per_token, first.bytes_per_token) == (None, None)  # that run has no scales


@pytest.mark.parametrize(("bound", "layers"), [(0.225001, ()), (0.2, (0,)), (0.0, (0, 1))])
def test_a_bound_decides_how_many(by_hand: Path, bound: float, layers: tuple[int, ...]) -> None:
    assert plan_layers(open_run(by_hand), "shipped", bound=bound).plans[0].layers == layers


def test_what_a_plan_foretells_is_what_a_replay_without_these_layers_finds(
    replayed: tuple[Path, Path], tmp_path: Path
) -> None:
    trace, run = replayed
    first = plan_layers(open_run(run), keep=1).plans[0]
    (layer,) = first.layers
    options = ("--cache-dtype", "int8_per_token_head", "--skip-layers", layer)
    assert kvtrace("replay", trace, *options, "-o", tmp_path / "kept.run").returncode == 0
    asked = ("query", tmp_path / "kept.run", "harm", "--param", "candidate=int8_per_token_head")
    rows = json.loads(kvtrace(*asked, "--json").stdout)
    assert rows[0]["harm"] == pytest.approx(first.harm, rel=1e-9)
    # 4 KV heads of 8 values: 128 bytes in bf16, K and V; in int8 2 x 4 x (8 + 4).
    assert (first.bytes_per_token, plan_layers(open_run(run)).bytes_per_token) == (128 + 96, 2 * 96)
    assert first.flags == f"--kv-cache-dtype int8_per_token_head --kv-cache-dtype-skip-layers {layer}"


def test_static_scales_are_served_as_fp8(replayed: tuple[Path, Path]) -> None:
    plan = plan_layers(open_run(replayed[1]), "unit", keep=0)
    assert plan.plans[0].flags == "--kv-cache-dtype fp8_e4m3"
    assert plan.plans[0].removed == 0
    assert [one.chosen for one in plan.plans] == ["by harm", "ends"]  # nothing clips


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--candidate", "nobody"), "no valid candidate is called 'nobody'; it holds shipped, fresh scales"),
        ((), "say which to plan for with --candidate NAME"),
        (("--candidate", "shipped", "--keep", "3"), "--keep 3: the run has harm of 2 layers"),
        (("--max-harm", "1", "--keep", "1"), "leave one out"),
        (("--max-harm", "inf"), "expected a number of 0 or more"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_line(
    by_hand: Path, options: tuple[str, ...], expected: str
) -> None:
    result = kvtrace("plan", by_hand, *options)
    assert result.returncode == 2
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_run_without_harm_says_what_it_takes(tmp_path: Path) -> None:
    run = fabricate_run(tmp_path / "r.run", read_tables(HARM_INPUT.parents[1] / "input"))
    result = kvtrace("plan", run, "--candidate", "shipped")
    assert result.returncode == 2
    assert "holds no harm of shipped; replay a trace with queries" in result.stderr


def test_the_text_sets_the_plan_beside_the_others(by_hand: Path) -> None:
    lines = kvtrace("plan", by_hand, "--candidate", "shipped", "--max-harm", "0.11").stdout.splitlines()
    assert lines[0] == "kvtrace plan · shipped: keep 1 layer native, so that harm is at most 11 %"
    rows = [line.split() for line in lines if line.startswith(("  none", "  most harm", "  vLLM"))]
    assert rows[0] == ["none", "22", "%", "0", "–"]
    assert rows[1] == ["most", "harm", "10", "%", "56", "%", "–", "0"]
    assert rows[2] == ["vLLM's", "ends", "0", "100", "%", "–", "0-1"]
