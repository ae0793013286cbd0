"""Real engines have the blocks and tokens that `kvtrace capacity` gives, and the log says so.

Models of random weights on this CPU. Where no engine of this machine runs a cache dtype or a backend,
vLLM's own planning is the oracle instead (tests/capacity/test_plans.py and write_capacity.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from support.capacity_cases import CASES, ENGINE_CASES, Case
from support.vllm_engines import ENVIRONMENT, ONE_PROCESS, START_TIMEOUT_S

from kvtrace.capacity.engine_log import read_engine_log
from kvtrace.capacity.model import model_layers
from kvtrace.capacity.plan import plan_cache
from kvtrace.capacity.serving import Serving

TESTS: Final = Path(__file__).parents[1]
DRIVER: Final = Path(__file__).parent / "run_capacity.py"
SHORT: Final = ("full", "7 windows + 1", "latent", "2 convolutions + 2")
PLANNER: Final = Path(__file__).parent / "write_capacity.py"


def run(script: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    given = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    kept = {name: value for name, value in os.environ.items() if name != "VLLM_CPU_KVCACHE_SPACE"}
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**kept, **given, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        check=False,
    )


def engines(folder: Path, cases: list[Case], **environment: str) -> tuple[dict[str, Any], str]:
    finished = run(DRIVER, folder / "out.json", *(case.name for case in cases), **environment)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads((folder / "out.json").read_text()), finished.stdout + finished.stderr


def planned(case: Case) -> dict[str, Any]:
    model = model_layers(case.full_config, case.name, name=case.name)
    plan = plan_cache(model, Serving(**case.settings))
    blocks = plan.num_blocks(case.budget)
    return {
        "block_size": plan.pages.block_size,
        "num_blocks": blocks,
        "num_tokens": plan.num_tokens(blocks),
        "concurrency": plan.concurrency(blocks),
    }


@pytest.mark.vllm
def test_four_engines_have_the_planned_blocks_and_tokens(tmp_path: Path) -> None:
    cases = [case for case in ENGINE_CASES if case.name in SHORT]
    found, log = engines(tmp_path, cases, **ONE_PROCESS)
    assert found == {case.name: planned(case) for case in cases}
    (tmp_path / "log").write_text(log)
    said = read_engine_log(tmp_path / "log")
    assert (said.num_tokens, said.max_model_len, said.is_cpu) == (
        found[cases[-1].name]["num_tokens"],
        512,
        True,
    )
    assert said.pool is not None
    assert said.pool.least <= cases[-1].budget <= said.pool.most


@pytest.mark.vllm_full
def test_every_engine_that_runs_here_has_the_planned_blocks_and_tokens(tmp_path: Path) -> None:
    alone = [case for case in ENGINE_CASES if case.settings["tp"] == 1 and case.name not in SHORT]
    found, _ = engines(tmp_path, alone, **ONE_PROCESS)
    assert found == {case.name: planned(case) for case in alone}


@pytest.mark.vllm_full
@pytest.mark.parametrize(
    "case", [case for case in ENGINE_CASES if case.settings["tp"] > 1], ids=lambda case: case.name
)
def test_ranks_with_copies_of_a_head_have_the_planned_blocks(tmp_path: Path, case: Case) -> None:
    found, _ = engines(tmp_path, [case])
    assert found == {case.name: planned(case)}


@pytest.mark.vllm_full
def test_vllms_own_planning_gives_what_is_written_for_every_case() -> None:
    finished = run(PLANNER, "--print")
    assert finished.returncode == 0, finished.stderr[-3000:]
    written = json.loads((TESTS / "capacity" / "plans.json").read_text())
    printed = [line.split("\t", 1) for line in finished.stdout.splitlines() if "\t" in line]
    assert {name: json.loads(plan) for name, plan in printed if name in written} == written
    assert len(written) == len(CASES) >= 14
