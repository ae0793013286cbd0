"""The command that a finding suggests runs as it is printed, and does what the finding says."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from incidents import all_incidents
from incidents.bench import new_bench
from support.run_cli import kvtrace

from kvtrace.candidates import ServingSetup, standard_candidates
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.findings.diagnose import diagnose
from kvtrace.report.build import build_report
from kvtrace.report.markdown import report_markdown
from kvtrace.report.terminal.text import report_text
from kvtrace.runs.open import open_run
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from incidents.bench import Bench

    from kvtrace.findings.finding import Finding

SEED = 5
MENDED = (
    "K of all heads clips",
    "one head sets the scale per tensor",
    "a workload outgrew its scales, all heads",
)
SHOWN = ("engine used 1.0 in one layer", "keys renamed", "weights differ from those of --against")


@pytest.mark.parametrize("name", MENDED)
def test_the_scales_that_the_suggested_command_makes_are_sound(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, finding = first_finding(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    words = printed_command(bench, finding)
    result = kvtrace(*words)
    assert result.returncode == 0, result.stderr
    made = tmp_path / words[words.index("-o") + 1]
    trace = open_trace(tmp_path / "incident.kvtrace")
    candidates = standard_candidates([trace], [load_artifact(made)], ServingSetup("vllm-cuda"))
    mended = diagnose(open_run(replay(ReplayRequest([trace], candidates, device="cpu"), tmp_path / "again")))
    assert mended.verdict.status == "sound", mended.verdict.headline


@pytest.mark.parametrize("name", SHOWN)
def test_the_suggested_audit_names_the_same_fault(name: str, tmp_path: Path) -> None:
    bench, finding = first_finding(name, tmp_path)
    result = kvtrace(*printed_command(bench, finding))
    assert result.returncode == 1, result.stderr
    assert f"ERROR   {finding.id}" in result.stdout


def first_finding(name: str, folder: Path) -> tuple[Bench, Finding]:
    bench = new_bench(SEED, folder)
    next(one for one in all_incidents() if one.name == name).plant(bench)
    return bench, bench.diagnosed().findings[0]


def printed_command(bench: Bench, finding: Finding) -> list[str]:
    """Return the arguments as a shell splits them, from what stands in the text and in the Markdown."""
    report = build_report(open_run(bench.folder / "run"))
    assert finding.command is not None
    lines = report_text(report).split("do now    kvtrace ")[1].splitlines()
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
    in_text = "kvtrace " + "\n".join(lines[: last + 1])
    in_markdown = report_markdown(report).split("```sh\n")[1].split("\n```")[0]
    words = shlex.split(in_text.replace("\\\n", " "))
    assert words == shlex.split(in_markdown) == shlex.split(finding.command)
    return words[1:]
