from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.calibration.save import save_scales

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    return fabricate_trace(
        tmp_path_factory.mktemp("traces") / "small.kvtrace",
        {(layer, t): random.normal(0, 3, (40, 2, 8)) for layer in range(2) for t in "kv"},
        request_of_row=[0] * 40,
        position_of_row=range(40),
        requests=[request(0, prompt_tokens=30, output_tokens=10)],
    )


def candidates(run: Path) -> dict[str, tuple[str, str, str]]:
    rows = pq.read_table(run / "candidates.parquet").to_pylist()
    return {row["candidate"]: (row["kind"], row["engine"], row["format"]) for row in rows}


def test_the_run_is_printed_and_a_later_one_says_that_no_tensor_was_reread(
    trace: Path, tmp_path: Path
) -> None:
    first = kvtrace("replay", trace, "--verify", "-o", tmp_path / "first")
    assert (first.returncode, first.stdout.strip()) == (0, str(tmp_path / "first"))
    assert first.stderr.splitlines() == ["small: verified: profile and element-wise replay agree"]
    second = kvtrace("replay", trace, "-o", tmp_path / "second")
    assert second.returncode == 0
    assert second.stderr.splitlines() == [
        "small: its profile was used, tensors were not reread (inspect --verify does)"
    ]
    direct = kvtrace("replay", trace, "--direct", "-o", tmp_path / "direct")
    assert direct.stderr.splitlines() == ["small: replayed element by element"]


def test_engine_format_and_cache_formats_are_chosen_by_options(trace: Path, tmp_path: Path) -> None:
    options = ("--engine", "vllm-rocm", "--fp8-format", "e4m3fnuz", "--online", "int8-per-token-head")
    assert kvtrace("replay", trace, *options, "-o", tmp_path / "run").returncode == 0
    assert candidates(tmp_path / "run") == {
        "bf16": ("bf16", None, None),
        "unit": ("unit", "vllm-rocm", "e4m3fnuz"),
        "int8-per-token-head": ("online", "vllm", "int8_per_token_head"),
    }


def test_skipped_layers_have_no_scale(trace: Path, tmp_path: Path) -> None:
    assert kvtrace("replay", trace, "--skip-layers", "1", "-o", tmp_path / "run").returncode == 0
    rows = pq.read_table(tmp_path / "run/scales.parquet").to_pylist()
    unit = {(row["layer"], row["scale"], row["origin"]) for row in rows if row["candidate"] == "unit"}
    assert unit == {(0, 1.0, "unit"), (1, None, "skipped")}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "cuda"), "vllm-cuda, vllm-triton"),
        (("--fp8-format", "fp8"), "e4m3fn, e5m2"),
        (("--engine", "vllm-cpu", "--fp8-format", "e4m3fnuz"), "does not write e4m3fnuz"),
        (("--online", "fp4"), "fp8_per_token_head"),
        (("--skip-layers", "first"), "expected layer numbers"),
        (("--skip-layers", "7"), "has layers 0 to 1"),
        (("--skip-layers", "0,1"), "no captured layer is left to quantize"),
        (("--direct", "--verify"), "one of --direct and --verify"),
        (("--memory", "lots"), "expected one such as 20GB"),
    ],
)
def test_an_option_that_cannot_be_followed_is_one_line_and_exit_2(
    trace: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    result = kvtrace("replay", trace, *options, "-o", tmp_path / "run")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_invalid_candidate_is_named_on_stderr(trace: Path, tmp_path: Path) -> None:
    save_scales(tmp_path / "huge", {(n, t): (3e38,) for n in range(2) for t in "kv"})
    save_scales(tmp_path / "good", {(n, t): (0.5,) for n in range(2) for t in "kv"})
    scales = ("--scales", tmp_path / "huge", "--scales", tmp_path / "good")
    result = kvtrace("replay", trace, *scales, "-o", tmp_path / "run")
    assert (result.returncode, result.stdout.strip()) == (0, str(tmp_path / "run"))
    line = result.stderr.splitlines()[0]
    assert line.startswith("huge: invalid, not scored: ")
    assert "expected a number > 0 and at most" in line


def test_a_policy_and_an_artifact_of_its_name_are_two_candidates(trace: Path, tmp_path: Path) -> None:
    policy = "fp8-per-token-head"
    save_scales(tmp_path / policy, {(n, t): (0.5,) for n in range(2) for t in "kv"})
    options = ("--scales", tmp_path / policy, "--online", policy, "--online", policy)
    assert kvtrace("replay", trace, *options, "-o", tmp_path / "run").returncode == 0
    kinds = {name: kind for name, (kind, _, _) in candidates(tmp_path / "run").items()}
    assert kinds == {"bf16": "bf16", "unit": "unit", policy: "online", f"{policy}#2": "artifact"}


def test_verifying_float32_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / "wide.kvtrace",
        {(0, t): np.ones((2, 1, 4)) for t in "kv"},
        request_of_row=[0, 0],
        position_of_row=range(2),
        requests=[request(0, prompt_tokens=2)],
        dtype="float32",
    )
    result = kvtrace("replay", path, "--verify", "-o", tmp_path / "run")
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        "wide: nothing was verified: float32 values are replayed one by one in any case",
        "wide: replayed element by element",
    ]


def test_a_name_that_is_not_utf8_is_refused(trace: Path, tmp_path: Path) -> None:
    arguments = [
        sys.executable,
        "-m",
        "kvtrace",
        "replay",
        bytes(trace),
        "-o",
        bytes(tmp_path / "run") + b"\xff",
    ]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "is not UTF-8; rename it" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_terminated_replay_leaves_nothing_behind(trace: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(trace, tmp_path / "copy.kvtrace", ignore=shutil.ignore_patterns("profile*"))
    script = (
        "import os, signal, sys\n"
        "from kvtrace.profile import ready\n"
        "whole = ready.fill_profile\n"
        "def fill(*arguments):\n"
        "    made = whole(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return made\n"
        "ready.fill_profile = fill\n"
        "from kvtrace.cli import main; main()\n"
    )
    before = {path.name for path in copy.iterdir()}
    result = subprocess.run(
        [sys.executable, "-c", script, "replay", str(copy), "-o", str(tmp_path / "run")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (143, "")
    assert {path.name for path in copy.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"copy.kvtrace"}
