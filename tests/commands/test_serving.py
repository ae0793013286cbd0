"""`kvtrace serving`, `goodput` and `export-arrivals` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.outcome_files import write_json
from support.run_cli import kvtrace
from support.serving_files import POLICY, bench_result, eleven_lines, served_file, sglang_result

from kvtrace.serving.report import GoodputReport

FILES = Path(__file__).parents[1] / "serving" / "files"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = served_file(tmp_path, eleven_lines())
    result = kvtrace("serving", f"bf16={file}", "--load", "open", "-o", tmp_path / "t.serving")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "bf16 run 0, serving.jsonl, open load: 9 completed, 1 failed, 1 rejected\n"
    return tmp_path / "t.serving"


def test_the_worked_example_is_told_in_text_and_json(table: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    result = kvtrace("goodput", table, "--policy", tmp_path / "policy.toml")
    assert result.returncode == 0, result.stderr
    said = result.stdout.splitlines()
    assert "  short: 0.4 a second; of 9 offered 4 accepted, 1 late, 1 wrong, 1 rejected, 1" in said
    assert "    failed, 1 unfinished" in said
    assert "  0.00625 EUR an accepted answer, by the hour" in said
    assert "  counted as tools do, by these limits: 7 good, 1 wrong, 2 outside the interval" in said
    assert "    among them, over 19 s to the last end: 0.3684 a second" in said
    assert "  /metrics: not measured" in said
    assert all(len(line) <= 80 for line in said)
    as_json = kvtrace("goodput", table, "--policy", tmp_path / "policy.toml", "--json")
    assert GoodputReport.model_validate_json(as_json.stdout).runs[0].all.goodput == 0.4


def test_a_real_run_of_vllm_and_its_scrapes_are_told(tmp_path: Path) -> None:
    metrics = [
        part
        for name in ("before", "after")
        for part in ("--metrics", f"bf16={FILES}/vllm_metrics_{name}.prom")
    ]
    result = kvtrace("serving", f"bf16={FILES}/vllm_bench_serve.json", *metrics, "-o", tmp_path / "t.serving")
    assert result.returncode == 0, result.stderr
    (tmp_path / "policy.toml").write_text(POLICY.replace("interval_s = 10", "interval_s = 2"))
    said = kvtrace("goodput", tmp_path / "t.serving", "--policy", tmp_path / "policy.toml").stdout
    assert "note: arrivals are taken from sending" in said
    assert "whole engine, over all scrapes, 2 scrapes: cache dtype auto, 364 blocks," in said
    assert "prompt_tokens +347, generation_tokens +147" in " ".join(said.split())


def test_what_a_file_cannot_give_is_said_when_it_is_read(tmp_path: Path) -> None:
    sglang = write_json(tmp_path / "s.json", sglang_result())
    closed = write_json(tmp_path / "c.json", bench_result(request_rate="inf", max_concurrency=2))
    result = kvtrace("serving", f"a={sglang}", f"b={closed}", "-o", tmp_path / "t")
    assert "  no goodput: it has no start times, so no request can be placed in an interval" in result.stdout
    assert "b run 0, vllm bench serve, closed load: 2 completed, 1 rejected" in result.stdout


def test_arrivals_keep_times_and_lengths_and_nothing_else(table: Path) -> None:
    result = kvtrace("export-arrivals", table)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == 11
    assert lines[0] == {"at_s": 0.0, "prompt_tokens": 100, "output_tokens": 11}
    assert [line["at_s"] for line in lines] == [0, 2, 3, 4, 5, 6, 8, 10, 11.5, 11.9, 12]
    assert kvtrace("export-arrivals", table, "--run", 3).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("serving", "x.jsonl", "-o", "t"), "expected VARIANT=FILE, such as fp8=bench.json"),
        (("serving", "a=/dev/zero", "-o", "t"), "is a device, expected a regular file"),
        (("serving", "a=nothing.json", "-o", "t"), "nothing.json: cannot be read: No such file"),
        (("goodput", "nothing", "--policy", "p.toml"), "p.toml: cannot be read"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], reason: str) -> None:
    result = kvtrace(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
