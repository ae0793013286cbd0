"""`kvtrace report` as a user meets it: a trace or a run in, text or JSON out, errors in one line."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.fabricate_run import fabricate_run, read_tables
from support.run_cli import kvtrace

from kvtrace.calibration.save import save_scales

SMALL = Path(__file__).parents[1] / "queries" / "input"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An FP8 engine with scale 1: K head 1 has one value in 8 beyond 464, and it is in `long` alone."""
    values = np.ones((8, 2, 8))
    values[4:, 1, 0] = 1000
    return fabricate_trace(
        tmp_path_factory.mktemp("report") / "day.kvtrace",
        {(0, "k"): values, (0, "v"): np.ones((8, 2, 8))},
        request_of_row=[0, 0, 0, 0, 1, 1, 1, 1],
        position_of_row=[0, 1, 2, 3, 4, 5, 6, 7],
        requests=[
            request(0, prompt_tokens=4),
            request(1, prompt_tokens=8, workload="long"),
        ],
        kv_cache_dtype="fp8",
    )


def test_a_trace_is_replayed_and_reported_in_one_command(trace: Path) -> None:
    result = kvtrace("report", trace)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    text = " ".join(result.stdout.split())
    # 1000 where 448 is covered, of which clipping to 448 loses (552 / 1000)².
    assert "The engine used scale 1.0 in layer 0" in text
    assert "effective K | ✕ 2.2 ×, layer 0 head 1 K" in text
    assert "layer 0 head 1 K loses 30 % of its energy to clipping" in text
    assert "FP8 was in effect. Every effective scale is exactly 1.0" in text


def test_json_of_a_trace_and_of_its_run_say_the_same(trace: Path, tmp_path: Path) -> None:
    run = tmp_path / "day.run"
    assert kvtrace("replay", trace, "-o", run).returncode == 0
    of_trace = json.loads(kvtrace("report", trace, "--json").stdout)
    of_run = json.loads(kvtrace("report", run, "--format", "json").stdout)
    assert of_run.pop("run") == str(run)
    assert of_trace.pop("run") is None
    of_trace.pop("created_at")
    of_run.pop("created_at")
    assert of_trace == of_run


def test_an_output_file_is_written_once(tmp_path: Path) -> None:
    run = fabricate_run(tmp_path / "small.run", read_tables(SMALL))
    output = tmp_path / "report.txt"
    assert kvtrace("report", run, "-o", output).stdout == ""
    assert output.read_text().startswith("kvtrace report")
    output.write_text("mine")
    refused = kvtrace("report", run, "-o", output)
    assert (refused.returncode, refused.stdout, output.read_text()) == (2, "", "mine")
    assert refused.stderr.count("\n") == 1
    assert kvtrace("report", run, "-o", output, "--force").returncode == 0
    assert output.read_text().startswith("kvtrace report")


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        "\x1b[2J\x1b[31mred\x07",
        "\u202egnp.exe\u2066",
        "x" * 200,
        "line\nbreak",
    ],
)
def test_files_with_hostile_names_are_reported_as_plain_text(name: str, tmp_path: Path) -> None:
    path = fabricate_trace(
        tmp_path / f"{name}.kvtrace",
        {(0, tensor): np.full((1, 2, 8), 1000.0) for tensor in ("k", "v")},
        request_of_row=[0],
        position_of_row=[0],
        requests=[request(0, prompt_tokens=1, workload=name)],
    )
    save_scales(tmp_path / name, {(0, "k"): (0.5,), (0, "v"): (0.5,)})
    for output_format in ("text", "md"):
        result = kvtrace("report", path, "--scales", tmp_path / name, "--format", output_format)
        assert (result.returncode, result.stderr) == (0, "")
        assert "FAULT · what-if" in result.stdout
        assert not [
            char for char in result.stdout if char != "\n" and unicodedata.category(char) in ("Cc", "Cf")
        ]
        prose = "".join(result.stdout.split("```")[::2])
        assert output_format == "text" or "<img" not in prose


def test_a_directory_that_is_neither_trace_nor_run_is_said_to_be_with_what_to_do(tmp_path: Path) -> None:
    run = fabricate_run(tmp_path / "small.run", read_tables(SMALL))
    (run / "run.json").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    expected = "a trace (NAME.kvtrace, as captured) or a run (the output of kvtrace replay)"
    for path, message in (
        (
            run,
            "run.json is missing beside the tables of a run, so the run is not whole; "
            f"expected {expected}. Run kvtrace replay again, with another -o",
        ),
        (
            tmp_path / "empty",
            f"holds neither trace.json nor run.json; expected {expected}. "
            "kvtrace replay TRACE -o RUN makes a run",
        ),
        (tmp_path / "file", f"is a file; expected the directory of {expected}"),
        (tmp_path / "nowhere", f"no such file or directory; expected {expected}"),
    ):
        result = kvtrace("report", path)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == f"kvtrace: {path}: {message}\n"


@pytest.mark.parametrize("command", ["report", "replay"])
def test_an_unknown_backend_is_refused_and_the_known_ones_are_named(
    command: str, trace: Path, tmp_path: Path
) -> None:
    result = kvtrace(command, trace, "--backend", "FLUSH_ATTN", "-o", tmp_path / "out")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--backend 'FLUSH_ATTN': unknown; expected one of FLASH_ATTN, FLASHINFER," in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_scales_on_a_backend_that_the_engine_cannot_run_are_invalid(trace: Path, tmp_path: Path) -> None:
    save_scales(tmp_path / "wide", {(0, "k"): (4.0,), (0, "v"): (4.0,)})
    arguments = (trace, "--scales", tmp_path / "wide", "--backend", "FLASHINFER")
    refused = kvtrace("report", *arguments, "--engine", "vllm-cpu")
    assert refused.returncode == 2
    assert "wide: backend FLASHINFER does not run on engine vllm-cpu" in refused.stderr
    assert "as vllm-cuda or sglang does" in refused.stderr
    assert kvtrace("report", *arguments, "--engine", "vllm-cuda").returncode == 0


def test_scales_per_head_on_a_backend_without_them_are_invalid_and_others_are_scored(
    trace: Path, tmp_path: Path
) -> None:
    save_scales(tmp_path / "per-head", {(0, "k"): (4.0, 2.0), (0, "v"): (4.0, 2.0)})
    save_scales(tmp_path / "per-tensor", {(0, "k"): (4.0,), (0, "v"): (4.0,)})
    artifacts = ("--scales", tmp_path / "per-head", "--scales", tmp_path / "per-tensor")
    on_flashinfer = ("--engine", "vllm-cuda", "--backend", "FLASHINFER")
    result = kvtrace("report", trace, *artifacts, *on_flashinfer, "--json")
    assert result.returncode == 0, result.stderr
    found = {one["candidate"]: one for one in json.loads(result.stdout)["candidates"]}
    assert found["per-head"]["status"] == "invalid"
    assert "FLASHINFER takes no scale per head" in found["per-head"]["reason"]
    assert found["per-head"]["tensors"] == []
    assert found["per-tensor"]["status"] == "valid"


def test_what_mends_scales_per_head_that_a_backend_refuses_makes_scales_per_tensor(
    trace: Path, tmp_path: Path
) -> None:
    save_scales(tmp_path / "per-head", {(0, "k"): (4.0, 2.0), (0, "v"): (4.0, 2.0)})
    save_scales(tmp_path / "per-tensor", {(0, "k"): (4.0,), (0, "v"): (4.0,)})
    artifacts = ("--scales", tmp_path / "per-head", "--scales", tmp_path / "per-tensor")
    refused = kvtrace(
        "report", trace, *artifacts, "--engine", "vllm-cuda", "--backend", "FLASHINFER", "--json"
    )
    assert refused.returncode == 0, refused.stderr
    findings = {one["id"]: one for one in json.loads(refused.stdout)["findings"]}
    command = findings["invalid-artifact"]["command"]
    assert command == f"kvtrace calibrate {trace} --headroom 2 --granularity tensor -o day-scales"
    assert findings["invalid-artifact"]["candidate"] == "per-head"
    # Nothing is collapsed where nothing starts.
    assert "per-head-collapsed" not in findings
    on_cpu = kvtrace("report", trace, *artifacts, "--engine", "vllm-cpu", "--backend", "CPU_ATTN", "--json")
    assert on_cpu.returncode == 0, on_cpu.stderr
    collapsed = {one["id"]: one for one in json.loads(on_cpu.stdout)["findings"]}["per-head-collapsed"]
    assert collapsed["action"].startswith("Calibrate per tensor: this platform has no backend")


def test_what_cannot_be_reported_is_one_line_and_exit_code_2(trace: Path, tmp_path: Path) -> None:
    run = fabricate_run(tmp_path / "small.run", read_tables(SMALL))
    for arguments, expected in (
        ((tmp_path / "nowhere",), "nowhere"),
        ((tmp_path,), str(tmp_path)),
        ((run, "--scales", tmp_path), "candidates are fixed"),
        ((run, trace, "--scales", tmp_path), "candidates are fixed"),
        ((run, run, run), "expected one, or two"),
        ((trace, "--scales", tmp_path / "no-artifact"), "no-artifact"),
        ((trace, "--device", "cuda:99"), "cuda:99"),
    ):
        result = kvtrace("report", *arguments)
        assert result.returncode == 2, result
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1, result.stderr
        assert expected in result.stderr


def test_two_formats_at_once_are_refused(tmp_path: Path) -> None:
    result = kvtrace("report", tmp_path, "--json", "--format", "md")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--json and --format md contradict each other" in result.stderr
