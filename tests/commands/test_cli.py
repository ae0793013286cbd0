"""The command line as a new user meets it: help, exit codes, one-line errors, outputs kept."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import Result, kvtrace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    return fabricate_trace(
        tmp_path / "small.kvtrace",
        {(layer, tensor): rng.normal(size=(40, 2, 8)) for layer in range(2) for tensor in ("k", "v")},
        request_of_row=[0] * 20 + [1] * 20,
        position_of_row=[*range(20), *range(20)],
        requests=[
            request(0, prompt_tokens=15, output_tokens=5),
            request(1, prompt_tokens=20, workload="\x1b[31mred"),
        ],
    )


def assert_one_line_error(result: Result, *expected: str) -> None:
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for text in expected:
        assert text in result.stderr


def test_help_lists_the_commands() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kvtrace", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("report", "inspect", "replay", "query", "scales", "calibrate"):
        assert command in result.stdout


def test_inspect_shows_model_coverage_and_completeness_and_no_escape_sequence(trace_path: Path) -> None:
    result = kvtrace("inspect", trace_path)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "no FP8 in effect" in result.stdout
    assert "40 of 40 sampled positions of finished requests are stored" in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80


def test_inspect_json_counts_tokens_and_requests_per_stratum(trace_path: Path) -> None:
    summary = json.loads(kvtrace("inspect", trace_path, "--json").stdout)
    cells = {
        (cell["workload"], cell["phase"], cell["position_octave"]): (cell["num_tokens"], cell["num_requests"])
        for cell in summary["coverage"]
    }
    assert cells["chat", "prefill", 3] == (7, 1)  # positions 8 to 14
    assert cells["chat", "decode", 3] == (1, 1)  # position 15
    assert cells["chat", "decode", 4] == (4, 1)  # positions 16 to 19
    assert summary["reread"] is False


def test_inspect_verify_names_a_chunk_with_a_flipped_bit(trace_path: Path) -> None:
    chunk = trace_path / "rank-0.zarr/layers/01/k/c/0/0/0"
    content = bytearray(chunk.read_bytes())
    content[20] ^= 4
    chunk.write_bytes(content)
    assert kvtrace("inspect", trace_path).returncode == 0  # says that tensors were not reread
    assert_one_line_error(kvtrace("inspect", trace_path, "--verify"), "layers/01/k/c/0/0/0", "is damaged")


def test_a_path_that_is_no_trace_is_one_line_and_exit_2(tmp_path: Path) -> None:
    assert_one_line_error(kvtrace("inspect", tmp_path), "is not a trace", "trace.json")


def test_an_output_that_exists_is_kept_unless_forced(trace_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("precious")
    assert_one_line_error(kvtrace("inspect", trace_path, "-o", output), "exists", "--force")
    assert output.read_text() == "precious"
    assert kvtrace("inspect", trace_path, "-o", output, "--force").returncode == 0
    assert "sampled positions" in output.read_text()


def test_an_unknown_option_is_exit_2(trace_path: Path) -> None:
    assert kvtrace("inspect", trace_path, "--nonsense").returncode == 2
