"""Real engines, each started once for all tests that look at what it left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.vllm_engines import Captured, connector, only_trace, run_offline
from support.vllm_prompts import HOSTILE, ONE_BY_ONE, REPEATED, SALTED, TOGETHER

ENGINE: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "seed": 0,
    "enforce_eager": True,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let vLLM and transformers import what PyTorch calls deprecated: that is theirs to change."""
    for item in items:
        if item.get_closest_marker("vllm") or item.get_closest_marker("vllm_full"):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(scope="session")
def model() -> Path:
    """Return the SmolLM2-135M checkpoint that samples/make_model.py makes."""
    folder = os.environ.get("KVTRACE_TEST_MODEL")
    if not folder:
        pytest.fail("KVTRACE_TEST_MODEL is not set; run `make test-vllm`")
    return Path(folder)


@pytest.fixture(scope="session")
def captured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Return a BF16 engine's trace of every position, its rounds, and what it said of itself."""
    folder = tmp_path_factory.mktemp("captured")
    engine = {**ENGINE, "kv_transfer_config": connector(folder / "traces", position_stride=1)}
    rounds = [*ONE_BY_ONE, REPEATED, SALTED, TOGETHER, HOSTILE]
    finished = run_offline(folder, model, engine, rounds)
    assert finished.returncode == 0, finished.stderr[-3000:]
    out = json.loads((folder / "out.json").read_text())
    return only_trace(folder / "traces"), out["rounds"], out


@pytest.fixture(scope="session")
def switched_off(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what the same engine did and was with kvtrace installed and not asked for."""
    folder = tmp_path_factory.mktemp("switched-off")
    finished = run_offline(folder, model, ENGINE, [*ONE_BY_ONE, REPEATED, SALTED])
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads((folder / "out.json").read_text())
