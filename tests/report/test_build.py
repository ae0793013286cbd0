"""The report of a small run worked out by hand, as text and as JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from support.fabricate_run import fabricate_run, read_tables, run_record, source_record

from kvtrace.report.build import build_report
from kvtrace.report.json import report_json
from kvtrace.report.sections import Report
from kvtrace.report.terminal.text import SECTIONS, report_text
from kvtrace.report.wording import columns
from kvtrace.runs.open import open_run

ROOT = Path(__file__).parents[2]
SMALL = Path(__file__).parents[1] / "queries" / "input"
HOSTILE_NAMES = (
    "<img src=x onerror=alert(1)>",
    "\x1b[2J\x1b[31mred\x07",
    "\u202egnp.exe\u2066",
    "[bold red]x[/]",
    "x" * 4_000,
    "日本語のワークロード" * 4,
    "a\u0301" * 2_000,
    "line\nbreak\ttab",
)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return build_report(open_run(fabricate_run(tmp_path / "small.run", read_tables(SMALL))))


def flowing(text: str) -> str:
    """The text without its line breaks, so that a sentence is found wherever it was wrapped."""
    return " ".join(text.split())


def report_of(tmp_path: Path, change: dict[str, dict[str, Any]]) -> Report:
    """The report of the small run after some columns of some tables were set: table → column → value."""
    tables = read_tables(SMALL)
    for table, values in change.items():
        for row in tables[table]:
            row.update({name: value(row) if callable(value) else value for name, value in values.items()})
    return build_report(open_run(fabricate_run(tmp_path / "changed.run", tables)))


def test_the_answer_comes_first_and_says_that_the_scales_were_not_loaded(report: Report) -> None:
    answer = flowing(report_text(report).split("RANGE USED")[0])
    assert answer.startswith("kvtrace report · day")
    assert "✕ FAULT · not loaded The engine did not use these scales in layer 0" in answer
    assert "do now Read what the loader does with the file; restart" in answer


def test_the_text_says_which_scales_clip_and_how_much_of_their_range_is_used(report: Report) -> None:
    text = flowing(report_text(report))
    # 280 where 224 is covered.
    assert "shipped K | ✕ 1.2 ×, layer 0 head 0 K" in text
    assert "shipped ✕ clips enough to matter in none, at all in 1, of 4 heads" in text
    assert "running ✓ nothing clips" in text
    assert "broken – cannot be used: layer 0 K scale is NaN" in text
    assert "bf16 not quantized" in text


def test_a_section_can_be_printed_alone(report: Report) -> None:
    whole = report_text(report)
    for section in SECTIONS:
        assert report_text(report, section=section).rstrip() in whole
    assert report_text(report, section="range").startswith("RANGE USED")


def test_the_text_fits_80_columns_and_needs_no_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # commands are whole, however long the path
    text = report_text(build_report(open_run(fabricate_run(Path("small.run"), read_tables(SMALL)))))
    assert max(map(columns, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_scales_that_were_never_loaded_are_said_to_be(report: Report) -> None:
    text = flowing(report_text(report))
    assert "Every effective scale is exactly 1.0" in text
    assert "It was not loaded: the engine used 1.0, and 4 of its 4 scales differ." in text


def test_scales_that_are_what_ran_are_said_to_be(tmp_path: Path) -> None:
    text = flowing(report_text(report_of(tmp_path, {"scales": {"scale": lambda row: row["scale"] and 0.5}})))
    assert "It is what ran: all 4 scales equal the effective ones." in text
    assert "Effective scales: K 0.5, V 0.5." in text


def test_scales_other_than_those_that_ran_are_counted(tmp_path: Path) -> None:
    def scale(row: dict[str, Any]) -> float | None:
        if row["candidate"] == "running":
            return 0.25 if row["tensor"] == "k" else 0.501  # 0.5 within what bf16 loses
        return row["scale"]  # type: ignore[no-any-return]

    text = flowing(report_text(report_of(tmp_path, {"scales": {"scale": scale}})))
    assert "It is not what ran: 2 of its 4 scales differ from the effective ones." in text


def test_a_trace_from_an_engine_without_fp8_makes_every_candidate_hypothetical(tmp_path: Path) -> None:
    tables = read_tables(SMALL)
    for name in ("candidates", "scales", "cells"):
        tables[name] = [row for row in tables[name] if row["candidate"] != "running"]
    record = run_record(source_record(has_fp8_cache=False))
    report = build_report(open_run(fabricate_run(tmp_path / "bf16.run", tables, record)))
    text = flowing(report_text(report))
    assert "cache dtype auto: no FP8 was in effect at capture. Every candidate is a what-if" in text
    assert "not loaded" not in text
    assert all(loaded.num_as_effective is None for loaded in report.loaded)


def test_values_out_of_range_that_are_not_clipped_are_no_clipping(tmp_path: Path) -> None:
    text = flowing(report_text(report_of(tmp_path, {"cells": {"num_clipped": 0, "sum_sq_clip_error": 0.0}})))
    assert "shipped ✕ nothing clips" in text  # its fault is that it was not loaded
    assert "where values are clipped" not in text


def test_what_was_captured_and_lost_is_shown_by_workload(report: Report) -> None:
    lines = report_text(report).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  workload "))
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["chat", "1/2", "2", "2", "0–3", "0", "0", "0"],
        ["code", "1/1", "1", "0", "0–1", "2", "1", "1"],
    ]
    assert "sampled: 1 in 3 positions of all requests" in "\n".join(lines)


def test_a_capture_that_was_not_closed_is_said_to_be(tmp_path: Path) -> None:
    record = run_record(source_record(closed=False))
    run = fabricate_run(tmp_path / "unclosed.run", read_tables(SMALL), record)
    text = flowing(report_text(build_report(open_run(run))))
    assert "It was not closed in order: its last rows may be missing." in text


def test_every_report_says_what_it_cannot_see(report: Report) -> None:
    text = flowing(report_text(report))
    for blind_spot in ("errors compounding", "task accuracy", "attention kernels", "cache transfer"):
        assert blind_spot in text


def test_a_note_of_a_candidate_is_shown(tmp_path: Path) -> None:
    text = flowing(report_text(report_of(tmp_path, {"candidates": {"note": "3 names matched nothing"}})))
    assert "Note: 3 names matched nothing" in text


def test_only_the_scales_that_the_answer_is_about_are_detailed_and_the_others_stand_in_the_table(
    tmp_path: Path,
) -> None:
    tables = read_tables(SMALL)
    for name in ("candidates", "scales", "cells"):
        tables[name] = [row for row in tables[name] if row["candidate"] != "running"]
        for number in range(5):
            copies = [dict(row) for row in tables[name] if row["candidate"] == "shipped"]
            for row in copies:
                row["candidate"] = f"copy-{number}"
                row.update({"ordinal": 10 + number} if name == "candidates" else {})
            tables[name] += copies
    record = run_record(source_record(has_fp8_cache=False))
    report = build_report(open_run(fabricate_run(tmp_path / "many.run", tables, record)))
    text = report_text(report)
    assert text.count("out of range under") == 1
    assert f"out of range under {report.answer.candidate}" in text
    assert all(f"\n  copy-{number}" in text for number in range(5))


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_show_as_plain_text_of_bounded_width(tmp_path: Path, name: str) -> None:
    tables = read_tables(SMALL)
    for table in ("requests", "cells"):
        for row in tables[table]:
            row["workload"] = name if row["workload"] == "chat" else row["workload"]
    for table in ("candidates", "scales", "cells"):
        for row in tables[table]:
            row["candidate"] = name if row["candidate"] == "shipped" else row["candidate"]
    for row in tables["candidates"]:
        row["reason"] = row["reason"] and name
        row["artifact"] = row["note"] = name
    for rows in tables.values():
        for row in rows:
            row.update({"source": name} if "source" in row else {})
    model = source_record().model.model_copy(update={"name": name})
    source = source_record(name, model=model, path=f"/traces/{name}")
    run = fabricate_run(tmp_path / "hostile.run", tables, run_record(source))
    report = replace(build_report(open_run(run)), run="hostile.run")
    text = report_text(report)
    assert all(char == "\n" or (ord(char) >= 32 and ord(char) != 0x7F) for char in text)
    assert not set(text) & set("\u202e\u2066")
    assert all(columns(line) <= 80 or is_one_word_of_a_command(line) for line in text.splitlines())
    assert len(text) < 20_000
    assert TypeAdapter(Report).validate_json(report_json(report)) == report


def is_one_word_of_a_command(line: str) -> bool:
    """A path is not broken, or it could not be copied."""
    (*options, word) = shlex.split(line.removesuffix(" \\"))
    return (
        line.startswith("    ")
        and (not options or options in (["--trace"], ["-o"], ["--model"]))
        and len(word) <= 1000
    )


def test_json_gives_numerators_and_denominators_for_everything_it_ranks(report: Report) -> None:
    content = json.loads(report_json(report))
    assert content["schema_version"] == "1.4"
    heads = [head for head in content["heads"] if head["candidate"] == "shipped" and head["tensor"] == "k"]
    assert [(head["layer"], head["kv_head"], head["rank"]) for head in heads] == [(0, 0, 1), (0, 1, 2)]
    measured = heads[0]["measured"]
    assert measured["out_of_range_frac"] == pytest.approx(10 / 70)
    counts = {
        "num_values": 50,
        "num_out_of_range": 6,
        "num_clipped": 3,
        "num_vectors": 5,
        "num_vectors_out_of_range": 3,
        "num_vectors_clipped": 2,
    }
    assert {name: measured[name] for name in counts} == counts
    strata = content["positions"] + content["workloads"]
    for ranked in (*heads, *strata, *content["candidates"][1]["tensors"]):
        assert ranked["measured"]["num_values"] > 0


def test_json_reads_back_as_the_same_report_and_what_was_not_measured_is_null(report: Report) -> None:
    assert TypeAdapter(Report).validate_json(report_json(report)) == report
    invalid = next(c for c in json.loads(report_json(report))["candidates"] if c["status"] == "invalid")
    assert invalid["tensors"] == []
    assert invalid["reason"] == "layer 0 K scale is NaN"


def test_a_report_of_a_run_needs_no_torch_polars_or_pyarrow(tmp_path: Path) -> None:
    run = fabricate_run(tmp_path / "small.run", read_tables(SMALL))
    script = (
        "import sys\n"
        "from kvtrace.cli import command_line\n"
        f"command_line(['report'])(['report', {str(run)!r}], standalone_mode=False)\n"
        "assert not {'torch', 'polars', 'pyarrow'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "RANGE USED" in done.stdout


def test_a_report_that_keeps_no_run_says_how_to_keep_one(report: Report) -> None:
    text = report_text(replace(report, run=None))
    assert "kvtrace replay TRACE --scales ARTIFACT" in text
    assert "kvtrace query RUN rank_heads" in text
