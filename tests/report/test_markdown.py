"""The report as Markdown for an incident document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.fabricate_run import fabricate_run, read_tables, run_record, source_record

from kvtrace.report.build import build_report
from kvtrace.report.markdown import MAX_LINES, report_markdown
from kvtrace.runs.open import open_run

SMALL = Path(__file__).parents[1] / "queries" / "input"
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\x1b[2J\x1b[31mred\x07",
    "\u202egnp.exe\u2066",
    "| a | [b](http://c) `d`",
    "x" * 4_000,
    "line\nbreak",
)


def test_the_markdown_begins_with_the_answer_and_its_command_and_names_the_trace(tmp_path: Path) -> None:
    tables = read_tables(SMALL)
    for row in tables["candidates"]:
        row["artifact"] = f"scales/{row['candidate']}"
    report = build_report(open_run(fabricate_run(tmp_path / "small.run", tables)))
    lines = report_markdown(report).splitlines()
    assert lines[0] == "## ✕ FAULT · not loaded: The engine did not use these scales in layer 0"
    assert lines[2] == "- **Where:** layer 0."
    start = lines.index("```sh")
    assert lines[start : start + 3] == ["```sh", "kvtrace scales scales/shipped --trace day.kvtrace", "```"]
    assert "| Is it the scales? | Yes | the engine did not use these scales in layer 0 |" in lines
    assert any(line.startswith("Evidence: 5 tokens of 2 requests in day (tiny, ") for line in lines)
    assert "SELECT" not in "".join(lines)


def test_the_markdown_never_exceeds_forty_lines(tmp_path: Path) -> None:
    report = build_report(open_run(fabricate_run(tmp_path / "small.run", read_tables(SMALL))))
    many = replace(
        report,
        findings=tuple(replace(one, severity="error") for one in report.findings) * 30,
        candidates=report.candidates * 30,
        sources=report.sources * 30,
    )
    assert len(report_markdown(many).splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_outside_stay_text_in_markdown(tmp_path: Path, name: str) -> None:
    tables = read_tables(SMALL)
    for table in ("candidates", "scales", "cells"):
        for row in tables[table]:
            row["candidate"] = name if row["candidate"] == "shipped" else row["candidate"]
    for row in tables["requests"]:
        row["workload"] = name
    for row in tables["candidates"]:
        row["artifact"] = row["note"] = name
        row["reason"] = row["reason"] and name
    for rows in tables.values():
        for row in rows:
            row.update({"source": name} if "source" in row else {})
    model = source_record().model.model_copy(update={"name": name})
    record = run_record(source_record(name, model=model, path=f"/traces/{name}"))
    text = report_markdown(build_report(open_run(fabricate_run(tmp_path / "hostile.run", tables, record))))
    assert len(text.splitlines()) <= MAX_LINES
    assert text.count("```") == 2
    prose = "".join(text.split("```")[::2])
    assert not set(text) & set("\x1b\x07\u202e\u2066")
    assert "<img" not in prose
    assert "[b](http" not in prose
    assert max(map(len, text.splitlines())) < 4_500
