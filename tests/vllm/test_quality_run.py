"""`kvtrace quality run` with a real vLLM: BF16 twice, and a cache that this machine may not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.vllm_engines import ENVIRONMENT

from kvtrace.outcomes.table import read_outcomes
from kvtrace.trace.reader import open_trace

ANALYSIS = Path(__file__).parents[2] / ".venv/bin/python"
"""What has pyarrow; vLLM's environment has not."""
_ROWS = "import json, sys, pyarrow.parquet as pq; print(json.dumps(pq.read_table(sys.argv[1]).to_pylist()))"

pytestmark = pytest.mark.vllm_full


def kvtrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ANALYSIS, "-m", "kvtrace", *map(str, arguments)],
        env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip


def rows_of(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file."""
    printed = subprocess.run([ANALYSIS, "-c", _ROWS, table], capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(printed.stdout)
    return rows


def test_bf16_twice_and_a_refused_cache_are_answered_scored_and_captured(tmp_path: Path, model: Path) -> None:
    python = ("--vllm-python", sys.executable)
    made = kvtrace(
        *("fixture", "make", "--model", model, "-o", tmp_path / "f", "--length", "short=700"),
        *("--language", "en", "--max-tokens", 24, *python),
    )
    assert made.returncode == 0, made.stderr
    cases = [json.loads(line) for line in (tmp_path / "f" / "cases.jsonl").read_text().splitlines()]
    done = kvtrace(
        *("quality", "run", "--model", model, "--variant", "bf16", "--variant", "bf16", "--variant", "nvfp4"),
        *("--prompts", tmp_path / "f" / "prompts.jsonl", "--cases", tmp_path / "f" / "cases.jsonl"),
        *("-o", tmp_path / "out", "--capture", "--engine-arg", "max_model_len=1024", "--engine-arg"),
        *("enforce_eager=true", "--engine-arg", "gpu_memory_utilization=0.4", *python),
    )
    assert done.returncode == 3, done.stderr
    assert "nvfp4: INVALID: " in done.stdout  # no CPU has it
    assert not (tmp_path / "out" / "work").exists()
    result = json.loads((tmp_path / "out" / "quality-run.json").read_text())
    engines = {one["name"]: one["engine"] for one in result["variants"] if one["invalid"] is None}
    assert set(engines) == {"bf16-a", "bf16-b"}
    assert all(one["dtype"] == "bfloat16" and one["backends"] for one in engines.values())
    rows = read_outcomes(tmp_path / "out" / "answers.outcomes").rows
    assert sorted(row.id for row in rows if row.variant == "bf16-b") == sorted(case["id"] for case in cases)
    # The capture has the same requests under the same key, by id and by exact prompt tokens.
    requests = open_trace(tmp_path / "out" / "bf16.kvtrace").requests.values()
    assert {row.client_id for row in rows} == {request.client_id for request in requests}
    assert {row.prompt_hash for row in rows} == {request.prompt_hash for request in requests}
    lengths = {request.prompt_hash: request.prompt_tokens for request in requests}
    tokens = {row.id: lengths[row.prompt_hash] for row in rows if row.prompt_hash}
    assert tokens == {case["id"]: case["prompt_tokens"] for case in cases}
    scores = rows_of(tmp_path / "out" / "scores.parquet")
    assert {row["variant"] for row in scores} == {"bf16-b"}
    forced = [row for row in scores if row["mode"] == "forced"]
    assert {row["id"] for row in forced} == {case["id"] for case in cases}
    assert all(row["logprob"] <= 0 and abs(row["delta"]) < 1 for row in forced)
    assert all(row["position"] == tokens[row["id"]] + row["step"] for row in forced)
