"""The diagnosis: findings carry SQL that shows them, the verdict ranks them, hostile names do no harm."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from incidents import all_incidents
from incidents.base import SAMPLE
from incidents.bench import Bench, new_bench, times
from support.examples import run_of
from support.fabricate import fabricate_trace, request
from support.fabricate_run import fabricate_run, read_tables, run_record, source_record
from support.run_cli import kvtrace

from kvtrace.calibration.recipe import Recipe
from kvtrace.candidates import standard_candidates
from kvtrace.errors import SchemaVersionError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.figures import percent
from kvtrace.findings.diagnose import diagnose
from kvtrace.findings.run.case import Case
from kvtrace.findings.run.example import CLIPS, Clipped, RunExample, Traffic
from kvtrace.query import connect_with_views, run_sql
from kvtrace.report.build import build_report
from kvtrace.runs.open import open_run
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from kvtrace.findings.diagnose import Diagnosis
    from kvtrace.findings.finding import Finding

SMALL = Path(__file__).parents[1] / "queries" / "input"
SCALES = SAMPLE.parent / "scales"
SHOWN = (
    "another artifact's scales ran",
    "a scale is 0, another artifact is sound",
    "V too wide, and K clips",
    "a workload and a position in the same heads",
    "decode outgrew its scales",
    "one head sets the scale per tensor",
    "a channel beyond what FP8 spans",
    "NaN in a layer",
    "too few requests",
)


def planted(name: str, folder: Path, seed: int = 5) -> tuple[Bench, Diagnosis]:
    bench = new_bench(seed, folder)
    next(one for one in all_incidents() if one.name == name).plant(bench)
    return bench, bench.diagnosed()


def of(diagnosis: Diagnosis, name: str) -> Finding:
    return next(one for one in diagnosis.findings if one.id == name)


@pytest.mark.parametrize("name", SHOWN)
def test_the_sql_of_every_finding_gives_its_evidence_and_is_one_that_a_user_may_run(
    name: str, tmp_path: Path
) -> None:
    bench, diagnosis = planted(name, tmp_path)
    connection = connect_with_views(open_run(bench.folder / "run"))
    for finding in diagnosis.findings:
        rows = list(run_sql(connection, finding.sql).records())
        assert rows, finding.id
        if "evidence" not in rows[0]:  # an audit's numbers are JSON inside the row
            assert [dict(row) for row in finding.evidence] == rows[: len(finding.evidence)]
        assert finding.message
        assert finding.action


def test_scales_that_differ_from_those_in_effect_are_counted_by_hand(tmp_path: Path) -> None:
    diagnosis = diagnose(open_run(fabricate_run(tmp_path / "small.run", read_tables(SMALL))))
    finding = diagnosis.findings[0]
    assert (finding.id, finding.severity, finding.candidate) == ("scales-not-loaded", "error", "shipped")
    assert len(finding.evidence) == 4
    assert {row["effective_scale"] for row in finding.evidence} == {1.0}
    assert diagnosis.verdict.status == "fault"
    assert diagnosis.verdict.subject == "shipped"


def test_an_artifact_that_ran_is_judged_once_under_its_own_name(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = bench.scales(Recipe(granularity="tensor"))
    bench.ship(bench.live, "deployed")
    bench.ship(times(bench.live, 3), "alternative")
    diagnosis = bench.diagnosed()
    assert diagnosis.verdict.judged == ("deployed", "alternative")
    assert diagnosis.verdict.status == "sound"
    assert "they are what ran" in of(diagnosis, "not-the-scales").message


def test_what_ran_is_blamed_before_what_was_only_tried(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = times(bench.scales(Recipe(granularity="tensor")), 1 / 2.5)
    bench.ship(times(bench.live, 1 / 4), "worse")
    bench.ship(bench.live, "deployed")
    diagnosis = bench.diagnosed()
    assert diagnosis.verdict.subject == "deployed"
    assert [one.candidate for one in diagnosis.findings if one.id == "k-clips"] == ["deployed", "worse"]


def test_clip_findings_name_the_heads_and_the_loss_of_energy(tmp_path: Path) -> None:
    bench = new_bench(4, tmp_path)
    bench.ship(times(bench.scales(), 1 / 3, "v", [(2, 1)]))
    finding = of(bench.diagnosed(), "v-clips")
    assert finding.heads == ((2, 1, "v"),)
    worst = finding.evidence[0]
    assert (worst["layer"], worst["kv_head"]) == (2, 1)
    assert worst["max_abs"] / worst["covered_amax"] == pytest.approx(3, rel=0.01)
    # Layers are kept native by harm (kvtrace plan); those that clip most are not those that harm most.
    assert "skip-layers" not in finding.action
    assert "--kv-cache-dtype bfloat16" in finding.action


def test_the_clip_finding_gives_the_worst_heads_own_share_of_clipped_values(tmp_path: Path) -> None:
    """K head 1 clips 4 of its 64 values at scale 1, K head 0 none: 6.25 % of its own, 3.1 % of K's."""
    values = np.ones((8, 2, 8))
    values[4:, 1, 0] = 1000
    path = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(0, "k"): values, (0, "v"): np.ones((8, 2, 8))},
        request_of_row=list(range(8)),
        position_of_row=[0] * 8,
        requests=[request(number, prompt_tokens=1) for number in range(8)],
    )
    trace = open_trace(path)
    run = replay(ReplayRequest([trace], standard_candidates([trace], []), device="cpu"), tmp_path / "run")
    message = of(diagnose(open_run(run)), "k-clips").message
    assert "(layer 0 head 1). Loses most: layer 0 head 1 loses 30 % of its energy and uses 2.2 ×" in message
    # It loses 552² of 1000² in 4 values, of an energy of 4 · 1000² + 60.
    assert "It clips 6.2 % of its values" in message


def test_a_head_that_clips_is_not_said_to_be_at_its_rounding_floor(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    best = bench.scales(Recipe("mse"))
    bench.ship(best, "best")
    bench.ship(times(best, 1 / 2, "k", [(2, 1)]), "narrow")
    findings = {one.candidate: one for one in bench.diagnosed().findings if one.id == "rounding-floor"}
    assert findings["best"].heads == ()
    assert findings["best"].message.endswith("no other scale will do much better")
    narrow = findings["narrow"]
    assert set(narrow.heads) == {(*head, tensor) for head in bench.heads for tensor in "kv"} - {(2, 1, "k")}
    assert "SQNR of 29 of 30 heads" in narrow.message
    assert narrow.message.endswith("Not so in layer 2 head 1 (K): more is lost in them")


def test_heads_that_lose_nothing_are_at_no_floor(tmp_path: Path) -> None:
    trace = fabricate_trace(
        tmp_path / "ones.kvtrace",
        {(0, tensor): np.ones((6, 2, 8)) for tensor in "kv"},
        request_of_row=list(range(6)),
        position_of_row=[0] * 6,
        requests=[request(number, prompt_tokens=1) for number in range(6)],
    )
    opened = open_trace(trace)
    run = replay(ReplayRequest([opened], standard_candidates([opened], []), device="cpu"), tmp_path / "run")
    assert "rounding-floor" not in {one.id for one in diagnose(open_run(run)).findings}


def test_not_the_scales_says_what_was_excluded_and_how_near_the_worst_head_comes(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.ship(bench.scales(Recipe("percentile", 99.9)))
    diagnosis = bench.diagnosed()
    assert diagnosis.verdict.headline.startswith(
        "not the scales: no clipping, flushing or drift beyond the limits, and no fault of the scales, was"
    )
    case = Case(open_run(bench.folder / "run"))
    worst = max(row["clip_error"] for one in case.subjects for row in case.whole_heads(one.name))
    message = of(diagnosis, "not-the-scales").message
    assert 0 < worst < 0.005
    assert "a head that loses over 0.50 % of its energy by clipping" in message
    assert f"the largest loss is {percent(worst)}" in message
    assert "the artifact's names" in message


def test_sound_scales_that_did_not_run_are_said_to_be_hypothetical(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.ship(bench.scales(Recipe(headroom=2.0)))
    for live, action in (
        (None, "These scales would cover what was captured. What FP8 does"),
        (bench.scales(Recipe(headroom=2.0)), "Look elsewhere: serve the same prompts with"),
    ):
        bench.live = live
        diagnosis = bench.diagnosed()
        assert diagnosis.verdict.status == "sound"
        assert of(diagnosis, "not-the-scales").action.startswith(action)
        run = open_run(bench.folder / "run")
        answer = build_report(run).answer
        assert answer.kind == ("as served" if live else "what-if")
        shutil.rmtree(bench.folder / "run")
        shutil.rmtree(bench.folder / "incident.kvtrace")


def test_sound_scales_other_than_those_that_ran_are_not_blamed_for_a_loss(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    bench.live = bench.scales(Recipe(headroom=2.0))
    bench.ship(bench.scales(Recipe(headroom=3.0)))  # taken for what should have run
    bench.ship(bench.scales(Recipe(headroom=4.0)), "other")
    found = {one.candidate: one.action for one in bench.diagnosed().findings if one.id == "not-the-scales"}
    assert found["effective"].startswith("Look elsewhere")
    assert found["other"].startswith("These scales would cover what was captured. The engine used others")


def test_default_scales_are_not_said_to_have_an_artifact_without_faults(tmp_path: Path) -> None:
    assert "artifact" not in of(new_bench(3, tmp_path).diagnosed(), "not-the-scales").message


def test_a_note_worth_reading_is_named_in_the_verdict(tmp_path: Path) -> None:
    _, diagnosis = planted("no other scale would do better", tmp_path)
    assert "rounding-floor" in diagnosis.verdict.headline.partition("; noted: ")[2].split(", ")


def test_a_drift_explains_the_clipping_it_causes(tmp_path: Path) -> None:
    bench = new_bench(6, tmp_path)
    bench.ship(bench.scales())
    bench.scale_values(3, bench.workload == "code", bench.heads[:4], "k")
    diagnosis = bench.diagnosed()
    assert diagnosis.findings[0].id == "drift-workload"
    assert "in workload code" in diagnosis.findings[0].message
    assert of(diagnosis, "k-clips").explained_by == ("drift-workload",)
    assert diagnosis.findings[0].severity == of(diagnosis, "k-clips").severity
    by_workload = {row["workload"]: row for row in diagnosis.findings[0].evidence}
    assert by_workload["chat"]["num_vectors_clipped"] == 0


def test_renaming_everything_a_user_names_changes_no_finding(tmp_path: Path) -> None:
    ids = []
    for number, (artifact, workload) in enumerate([("shipped", "code"), ("it's; DROP TABLE x", "w'or\"k")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        bench = new_bench(6, folder)
        bench.requests = [
            one.model_copy(update={"workload": workload}) if one.workload == "code" else one
            for one in bench.requests
        ]
        bench.ship(bench.scales(), artifact)
        bench.scale_values(3, bench.workload == "code", bench.heads[:4], "k")
        diagnosis = bench.diagnosed()
        ids.append([(one.id, one.severity, one.heads) for one in diagnosis.findings])
        assert diagnosis.verdict.judged == (artifact,)
    assert ids[0] == ids[1]


def test_a_trace_of_too_few_requests_cannot_tell_rather_than_being_sound(tmp_path: Path) -> None:
    _, diagnosis = planted("too few requests", tmp_path)
    assert diagnosis.verdict.status == "cannot tell"
    assert diagnosis.verdict.headline.startswith("too few requests to tell: ")


def test_rows_lost_at_capture_are_not_enough_coverage(tmp_path: Path) -> None:
    tables = read_tables(SMALL)
    for name in ("candidates", "scales", "cells"):
        tables[name] = [row for row in tables[name] if row["candidate"] in ("bf16", "unit")]
    tables["requests"] = [
        row | {"request": number, "num_rows": 1, "num_dropped": 1, "sampled": True}
        for row in tables["requests"][:1]
        for number in range(9)
    ]
    record = run_record(source_record(has_fp8_cache=False))
    diagnosis = diagnose(open_run(fabricate_run(tmp_path / "lossy.run", tables, record)))
    assert "9 of 18 sampled rows were lost" in of(diagnosis, "coverage").message


def test_without_an_artifact_the_default_scales_are_judged(tmp_path: Path) -> None:
    bench = new_bench(3, tmp_path)
    diagnosis = bench.diagnosed()
    assert diagnosis.verdict.judged == ("unit",)
    assert diagnosis.verdict.status == "sound"


def test_the_sample_is_diagnosed_as_its_artifacts_were_made(tmp_path: Path) -> None:
    trace = open_trace(SAMPLE)
    artifacts = [load_artifact(SCALES / name) for name in ("all-per-head", "halved")]
    run = replay(
        ReplayRequest([trace], standard_candidates([trace], artifacts), device="cpu"), tmp_path / "run"
    )
    diagnosis = diagnose(open_run(run))
    assert diagnosis.verdict.subject == "halved"
    assert diagnosis.verdict.sound == ("all-per-head",)
    assert {one.id for one in diagnosis.findings if one.severity != "note"} == {
        "constant-factor",
        "k-clips",
        "v-clips",
    }
    reported = kvtrace("report", run)
    assert (reported.returncode, reported.stderr) == (0, "")
    assert "✓ SOUND · choice Take all-per-head: nothing clips, of 2 scales" in " ".join(
        reported.stdout.split()
    )


def test_the_verdict_says_which_finding_it_rests_on(tmp_path: Path) -> None:
    clipped = RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()})
    for name, example, status, finding in (
        ("fault", clipped, "fault", "k-clips"),
        ("sound", RunExample(), "sound", "not-the-scales"),
        ("few", RunExample(traffic=(Traffic(requests=4),)), "cannot tell", "coverage"),
    ):
        diagnosis = diagnose(open_run(run_of(example, tmp_path / name)))
        assert diagnosis.verdict.status == status
        assert diagnosis.verdict.finding is not None
        assert diagnosis.findings[diagnosis.verdict.finding].id == finding
        report = build_report(open_run(tmp_path / name))
        (first,) = {one.command or one.action for one in diagnosis.findings if one.id == finding}
        told = report.answer.action
        assert status == "sound" or first == (told.command or told.text)


def test_what_a_finding_calls_for_has_a_type(tmp_path: Path) -> None:
    for name, example, finding, remedy in (
        (
            "swapped",
            RunExample(audit=({"id": "kv-swapped", "severity": "error", "evidence": "{}"},)),
            "kv-swapped",
            "look",
        ),
        ("sound", RunExample(), "not-the-scales", "elsewhere"),
        ("sound 2", RunExample(), "rounding-floor", "leave layers"),
        ("1.0 ran", RunExample(live=1.0), "scales-not-loaded", "look"),
        ("invalid", RunExample(invalid_as="unusable-value"), "invalid-artifact", "recalibrate"),
    ):
        found = diagnose(open_run(run_of(example, tmp_path / name)))
        assert of(found, finding).remedy == remedy


def test_a_finding_of_a_newer_kvtrace_is_not_ranked_by_a_guess(tmp_path: Path) -> None:
    run = run_of(
        RunExample(audit=({"id": "of-next-year", "severity": "error", "evidence": "{}"},)), tmp_path / "run"
    )
    with pytest.raises(SchemaVersionError, match="'of-next-year', which this kvtrace does not know; install"):
        diagnose(open_run(run))
    result = kvtrace("report", run)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
