"""What is said where the replay's engine, backend or format is not that of the captured engine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from incidents.bench import Bench, new_bench

from kvtrace.calibration.recipe import Recipe
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

    from kvtrace.report.sections import Report

OTHERWISE = "what-if: these scales ran, but not as {} would write them"


def reported(bench: Bench, setup: ServingSetup) -> Report:
    trace = open_trace(bench.write("incident"))
    artifacts = [load_artifact(path) for path in bench.artifacts]
    candidates = standard_candidates([trace], artifacts, setup)
    return build_report(
        open_run(replay(ReplayRequest([trace], candidates, device="cpu"), bench.folder / "run"))
    )


def texts(report: Report) -> tuple[str, str]:
    """Return the answer as text and as Markdown."""
    text = " ".join(report_text(report, section="answer").split())
    return text, report_markdown(report).replace("\\", "")


@pytest.mark.parametrize(
    ("is_shipped", "setup", "shown"),
    [
        (False, ServingSetup("vllm-cuda"), None),
        (True, ServingSetup("vllm-cuda"), None),
        (False, ServingSetup("vllm-rocm", "e4m3fnuz"), "vllm-rocm in e4m3fnuz"),
        (True, ServingSetup("vllm-rocm", "e4m3fnuz"), "vllm-rocm in e4m3fnuz"),
        (False, ServingSetup("vllm-cuda", skip_layers=(1,)), "vllm-cuda in e4m3fn"),
    ],
)
def test_scales_that_ran_are_hypothetical_where_the_cache_was_written_in_another_way(
    tmp_path: Path, is_shipped: bool, setup: ServingSetup, shown: str | None
) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = bench.scales(Recipe(headroom=4.0))
    if is_shipped:
        bench.ship(bench.live)
    report = reported(bench, setup)
    assert report.verdict.status == "sound"
    note = next(one for one in report.findings if one.id == "not-the-scales")
    for text in texts(report):
        assert (OTHERWISE.format(shown) in text) if shown else ("as served" in text)
    assert ("they are what ran" in note.message) is (shown is None)
    assert note.action.startswith("Look elsewhere") is (shown is None)
    if is_shipped:
        whole = " ".join(report_text(report).split())
        assert "It is what ran: all " in whole
        assert ("The captured engine wrote its cache in another way." in whole) is (shown is not None)


def test_a_clipping_head_of_scales_that_ran_is_hypothetical_too(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = bench.scales(Recipe(headroom=0.25))
    report = reported(bench, ServingSetup("vllm-cpu", "e5m2"))
    assert report.verdict.status == "sound"  # 57,344 × scale covers what 448 × scale does not
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(tmp_path / "incident.kvtrace")
    report = reported(bench, ServingSetup("vllm-rocm"))
    assert report.verdict.status == "fault"
    assert all(OTHERWISE.format("vllm-rocm in e4m3fn") in text for text in texts(report))


def test_a_setup_that_cannot_be_is_not_called_a_fault_of_an_artifact(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = bench.scales()
    trace = open_trace(bench.write("incident"))
    setup = ServingSetup("vllm-cuda", backend="CPU_ATTN")
    run = replay(
        ReplayRequest([trace], standard_candidates([trace], [], setup), device="cpu"), tmp_path / "run"
    )
    (finding,) = [one for one in diagnose(open_run(run)).findings if one.candidate == "effective"]
    assert (finding.id, finding.severity) == ("invalid-artifact", "error")
    assert "CPU_ATTN does not run on engine vllm-cuda" in finding.message
    assert finding.action.startswith("No artifact is at fault: replay with an engine, backend and format")
    assert finding.command is None
    assert "in another way" not in report_text(build_report(open_run(run)))
