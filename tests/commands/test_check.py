"""`kvtrace check` and `kvtrace compare` as a shell sees them: exit codes, formats, refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.gate_checks import invoke
from support.gate_runs import Traffic, gate_run

from kvtrace.errors import ComparisonError, InputError, NotATraceError, OutputExistsError, PolicyError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = (0, 1, "v")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(
        'name = "p"\ndate = 2020-01-01\n[limits]\nvectors_clipped_frac = 0.2\n'
        '[coverage]\nrequests = 5\ntokens = 5\n[[segments]]\nname = "all"\n'
    )
    return path


@pytest.mark.parametrize(
    ("traffic", "code", "verdict"),
    [
        (Traffic("chat", 40), 0, "within"),
        (Traffic("chat", 40, clipped={HEAD: [10] * 40}), 1, "breached"),
        (Traffic("chat", 6), 3, "not enough coverage"),
    ],
)
def test_the_exit_code_and_both_formats_say_the_same(
    tmp_path: Path, policy: Path, traffic: Traffic, code: int, verdict: str
) -> None:
    run = gate_run(tmp_path / "run", traffic)
    text = invoke("check", run, "--policy", policy)
    assert text.exit_code == code
    assert verdict.upper() in text.stdout.splitlines()[0] + text.stdout.splitlines()[1]
    printed = invoke("check", run, "--policy", policy, "--json")
    assert printed.exit_code == code
    content = json.loads(printed.stdout)
    assert content["verdict"] == verdict
    assert content["schema_version"] == "1.2"
    assert content["segments"][0]["limits"][0]["bound"] == 0.2


def test_text_fits_80_columns(tmp_path: Path, policy: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 40, clipped={HEAD: [10] * 40}))
    for command in ("check", "compare"):
        text = invoke(command, run, "--policy", policy).stdout.replace(str(tmp_path), "")
        assert max(map(len, text.splitlines())) <= 80


def test_unusable_input_is_one_typed_error(tmp_path: Path, policy: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 40))
    for arguments, kind in [
        (("check", tmp_path, "--policy", policy), NotATraceError),
        (("check", run, "--policy", tmp_path / "absent.toml"), PolicyError),
        (("check", run, "--policy", policy, "--candidate", "absent"), InputError),
        (("compare", run, tmp_path), NotATraceError),
        (("compare", run, "--baseline", "absent"), ComparisonError),
    ]:
        assert isinstance(invoke(*arguments).exception, kind)


def test_an_output_that_exists_is_kept(tmp_path: Path, policy: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 40))
    output = tmp_path / "check.json"
    output.write_text("mine")
    result = invoke("check", run, "--policy", policy, "--json", "-o", output)
    assert isinstance(result.exception, OutputExistsError)
    assert output.read_text() == "mine"
    assert invoke("check", run, "--policy", policy, "--json", "-o", output, "--force").exit_code == 0
    assert json.loads(output.read_text())["verdict"] == "within"


def test_a_comparison_exits_0_whatever_it_says(tmp_path: Path, policy: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 40, clipped={HEAD: [10] * 40}))
    result = invoke("compare", run, "--policy", policy, "--json")
    assert result.exit_code == 0
    decisions = {row["name"]: row["decision"] for row in json.loads(result.stdout)["rows"]}
    assert decisions == {"bf16": "baseline", "cal": "breaches the policy"}
    assert json.loads(result.stdout)["schema_version"] == "1.2"
    assert "calibrated: cal: BREACHES THE POLICY" in invoke("compare", run, "--policy", policy).stdout


def test_checking_changes_nothing_in_the_run(tmp_path: Path, policy: Path) -> None:
    run = gate_run(tmp_path / "run", Traffic("chat", 40))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    invoke("check", run, "--policy", policy)
    invoke("compare", run, "--policy", policy)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
