"""Which candidates a report tells of head by head, and what each choice is given: a state and a command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.examples import run_of
from support.fabricate_run import fabricate_run, read_tables, run_record, source_record

from kvtrace.errors import InputError
from kvtrace.findings.run.example import CLIPS, FLUSHES, Clipped, RunExample
from kvtrace.report.build import build_report
from kvtrace.report.html.render import report_html
from kvtrace.report.markdown import report_markdown
from kvtrace.report.shown import MOST_SHOWN, left_out
from kvtrace.report.terminal.text import report_text
from kvtrace.runs.open import Run, open_run
from kvtrace.runs.schema import TABLES

SMALL = Path(__file__).parents[1] / "queries" / "input"
NUM_COPIES = 12
COPIES = [f"copy-{number:02}" for number in range(NUM_COPIES)]


def run_of_many(path: Path) -> Run:
    """The small run with 12 copies of its artifact, of which the 8th alone loses nothing to clipping."""
    tables = read_tables(SMALL)
    for name in ("candidates", "scales", "cells"):
        tables[name] = [row for row in tables[name] if row["candidate"] != "running"]
        for number, copy in enumerate(COPIES):
            rows = [dict(row) for row in tables[name] if row["candidate"] == "shipped"]
            for row in rows:
                row["candidate"] = copy
                row.update({"ordinal": 10 + number} if name == "candidates" else {})
                if name == "cells" and number == 7:
                    row.update({"num_clipped": 0, "sum_sq_clip_error": 0.0})
            tables[name] += rows
    return open_run(fabricate_run(path, tables, run_record(source_record(has_fp8_cache=False))))


def test_of_many_candidates_the_recommended_and_the_best_are_told_of_and_all_are_counted(
    tmp_path: Path,
) -> None:
    report = build_report(run_of_many(tmp_path / "many.run"))
    assert report.answer.candidate == "copy-07"
    assert "copy-07" in report.shown
    assert "bf16" in report.shown
    assert len([name for name in report.shown if name != "bf16"]) == MOST_SHOWN
    assert {head.candidate for head in report.heads} <= set(report.shown)
    assert {one.candidate for one in report.positions + report.workloads} <= set(report.shown)
    names = {one.candidate for one in report.candidates}
    assert names >= {*COPIES, "shipped"}
    assert {one.candidate for one in report.answer.compared} == names - {"bf16"}


def test_that_some_are_not_shown_is_said_in_text_and_page(tmp_path: Path) -> None:
    run = run_of_many(tmp_path / "many.run")
    report = build_report(run)
    said = left_out(report)
    assert said is not None
    assert said.startswith(f"{MOST_SHOWN + 1} of {len(report.candidates)} candidates are shown:")
    assert said in " ".join(report_text(report).split())
    page = report_html(report, run)
    assert said in page
    hidden = next(name for name in COPIES if name not in report.shown)
    assert f'"{hidden}"' not in page
    assert hidden not in report_text(report, section="formats")


def test_a_candidate_that_is_asked_for_is_shown_beside_that_of_the_answer(tmp_path: Path) -> None:
    report = build_report(run_of_many(tmp_path / "many.run"), candidates=["copy-03"])
    assert report.shown == ("bf16", "copy-03", "copy-07")
    assert "copy-03" in report_text(report, section="formats")
    assert "copy-04" not in report_text(report, section="formats")
    assert "copy-03" in report_markdown(report)


def test_a_candidate_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--candidate nowhere: no such candidate; expected one of .* more"):
        build_report(run_of_many(tmp_path / "many.run"), candidates=["nowhere"])


def test_of_a_few_candidates_all_are_shown(tmp_path: Path) -> None:
    report = build_report(open_run(fabricate_run(tmp_path / "small.run", read_tables(SMALL))))
    assert report.shown == tuple(one.candidate for one in report.candidates)
    assert left_out(report) is None


def with_unit(example: RunExample, path: Path, sums: dict[str, Any]) -> Run:
    """An example's run with scales of 1.0 beside it, under which the first head of K has these sums."""
    run_of(example, path)
    tables = {table.name: pq.read_table(path / table.file_name).to_pylist() for table in TABLES}
    for name in ("candidates", "scales", "cells"):
        for row in [dict(row) for row in tables[name] if row["candidate"] == "shipped"]:
            row["candidate"] = "unit"
            if name == "candidates":
                row |= {"ordinal": 9, "kind": "unit", "artifact": None, "hypothetical": True}
            is_first = (row.get("layer"), row.get("kv_head"), row.get("tensor")) == (0, 0, "k")
            if name == "scales":
                # Every vector of the example has a larger code.
                row |= {"scale": 1.0} | (
                    {"max_unclipped_code": 5} if is_first and "num_clipped" in sums else {}
                )
            if name == "cells" and is_first:
                row |= sums
            tables[name].append(row)
    return open_run(fabricate_run(path, tables))


def test_default_scales_that_were_replayed_have_a_state_of_their_own(tmp_path: Path) -> None:
    for name, sums, state in (
        ("sound", {}, "sound"),
        ("clips", CLIPS, "fault"),
        ("flushes", FLUSHES, "warning"),
    ):
        report = build_report(with_unit(RunExample(), tmp_path / f"{name}.run", dict(sums)))
        (unit,) = [one for one in report.answer.compared if one.candidate == "unit"]
        assert unit.state == state, name
        assert report.answer.candidate == "shipped"
        assert report.answer.state == "sound"


def test_effective_scales_that_are_an_artifacts_have_its_state(tmp_path: Path) -> None:
    clips = RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()}, live=1.5)
    report = build_report(open_run(run_of(clips, tmp_path / "run")))
    states = {one.candidate: (one.state, one.text) for one in report.answer.compared}
    assert states["effective"] == ("fault", "the same scales as shipped")
    assert states["shipped"][0] == "fault"


def test_each_choice_has_a_command_of_its_own_in_text_page_and_json(tmp_path: Path) -> None:
    run = run_of_many(tmp_path / "many.run")
    report = build_report(run)
    chosen = {one.candidate: one.command for one in report.answer.compared}
    assert chosen["copy-07"] == f"kvtrace report {run.path} --candidate copy-07"
    text = re.sub(r" \\\n +", " ", report_text(report, section="formats"))
    page = re.sub(r"<[^>]*>", "", report_html(report, run))
    for name in report.shown:
        if command := chosen.get(name):
            assert command in text
            assert command in page


def test_what_clips_is_given_the_command_that_mends_it(tmp_path: Path) -> None:
    clips = RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()})
    (shipped,) = build_report(open_run(run_of(clips, tmp_path / "run"))).answer.compared
    assert shipped.command is not None
    assert shipped.command.startswith("kvtrace calibrate")


def test_the_verdict_and_the_answer_are_about_the_same_scales(tmp_path: Path) -> None:
    """Sound scales ran, and an artifact that was not served would clip: the verdict does not blame it."""
    path = tmp_path / "served.run"
    run = with_unit(RunExample(live=1.5), path, CLIPS)
    tables = {table.name: pq.read_table(path / table.file_name).to_pylist() for table in TABLES}
    for name in ("candidates", "scales", "cells"):
        for row in tables[name]:
            if row["candidate"] == "unit":
                row["candidate"] = "new"
                row |= {"kind": "artifact", "artifact": "new"} if name == "candidates" else {}
                row |= {"scale": 0.5} if name == "scales" else {}
    report = build_report(open_run(fabricate_run(path, tables)))
    assert run.path == path
    assert (report.answer.state, report.answer.kind, report.answer.candidate) == (
        "sound",
        "as served",
        "shipped",
    )
    assert report.verdict.status == "sound"
    assert report.verdict.headline.startswith("not the scales:")
    assert report.verdict.sound == ("shipped",)
    assert {one.candidate: one.state for one in report.answer.compared}["new"] == "fault"
