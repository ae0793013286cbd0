"""Two deployments, before and after: what changed, where it clips now, what differs besides; never pooled."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from support.examples import run_of
from support.fabricate_run import run_record, source_record, write_record
from support.run_cli import kvtrace

from kvtrace.findings.run.example import CLIPS, Clipped, RunExample, Traffic
from kvtrace.report.answer.model import HarmedHead
from kvtrace.report.before_after.build import build_before_after
from kvtrace.report.before_after.markdown import before_after_markdown
from kvtrace.report.before_after.model import Difference, HeadChange, ScalesChange
from kvtrace.report.before_after.page import before_after_html
from kvtrace.report.before_after.text import SECTIONS, before_after_text
from kvtrace.report.markdown import MAX_LINES
from kvtrace.report.wording import columns
from kvtrace.runs.open import Run, open_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.report.before_after.model import BeforeAfter

NUMBER = re.compile(r"[<>]?\d[\d,.]*")
SOUND = RunExample(live=1.5)
K_CLIPS = RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()}, live=1.5)
V_CLIPS_TOO = RunExample(
    sums={(0, 0, "k"): CLIPS, (0, 1, "v"): CLIPS},
    clipped={(0, 0, "k"): Clipped(), (0, 1, "v"): Clipped()},
    live=1.5,
)
FEW = RunExample(traffic=(Traffic(requests=4),), live=1.5)
INVALID = RunExample(invalid_as="scale-count")
PAIRS = {
    "new": (SOUND, K_CLIPS),
    "gone": (K_CLIPS, SOUND),
    "more": (K_CLIPS, V_CLIPS_TOO),
    "fewer": (V_CLIPS_TOO, K_CLIPS),
    "as many": (K_CLIPS, K_CLIPS),
    "sound": (SOUND, SOUND),
    "too few": (K_CLIPS, FEW),
    "invalid": (INVALID, K_CLIPS),
}
HEADLINES = {
    "new": "Clipping is new: it matters in 1 head, in none before",
    "gone": "Clipping is gone: it mattered in 1 head, in none after",
    "more": "More heads clip enough to matter: 1 before, 2 after",
    "fewer": "Fewer heads clip enough to matter: 2 before, 1 after",
    "as many": "As many heads clip enough to matter as before: 1",
    "sound": "Nothing clips enough to matter, before or after",
    "too few": "No change can be told: after could not be judged",
    "invalid": "No change can be told: before could not be judged",
}


def two_runs(folder: Path, before: RunExample, after: RunExample) -> tuple[Run, Run]:
    return open_run(run_of(before, folder / "before.run")), open_run(run_of(after, folder / "after.run"))


def told_of(folder: Path, before: RunExample, after: RunExample) -> BeforeAfter:
    return build_before_after(*two_runs(folder, before, after))


def test_the_head_that_clips_now_is_named_with_what_it_lost_before(tmp_path: Path) -> None:
    told = told_of(tmp_path, SOUND, K_CLIPS)
    # CLIPS loses 5e4 of 1e6, and 900 of 448 are covered; SOUND loses none and uses 400 of 448.
    assert told.heads == (HeadChange(0, 0, "k", 0.0, 0.05, 400 / 448, 900 / 448, 1.0),)
    assert (told.num_worse, told.num_better, told.clips_before, told.clips_after) == (1, 0, 0, 1)
    assert told.answer.most_harmed == HarmedHead(0, 0, "k")
    assert told.answer.matters[0] == "layer 0 head 0 K loses 5.0 % of its energy to clipping, 0 before"
    assert told.answer.where == ("layer 0 head 0 K",)
    assert told.answer.action.command is not None
    assert told.answer.action.until == "with --kv-cache-dtype bfloat16"


def test_scales_that_cover_twice_as_much_are_counted_with_their_ratio(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path, SOUND, SOUND)
    rows = "SELECT * REPLACE (covered_amax * 2 AS covered_amax) FROM 'scales.parquet' WHERE kv_head = 0"
    rewrite(after.path, f"{rows} UNION ALL SELECT * FROM 'scales.parquet' WHERE kv_head = 1")
    told = build_before_after(before, open_run(after.path))
    assert told.scales == ScalesChange(4, 2, 2.0, 2.0, 0, 0)
    assert "the scales of 2 of 4 heads changed: they cover 2.0 × as much" in told.answer.matters


def rewrite(run: Path, sql: str) -> None:
    import duckdb
    import pyarrow.parquet as pq

    table = pq.read_table(run / "scales.parquet")
    connection = duckdb.connect()
    connection.register("given", table)
    found = connection.sql(sql.replace("'scales.parquet'", "given")).to_arrow_table().cast(table.schema)
    pq.write_table(found, run / "scales.parquet")
    write_record(run, open_record(run))


def open_record(run: Path) -> Any:
    from kvtrace.runs.record import RunRecord
    from kvtrace.runs.schema import RUN_FILE
    from kvtrace.trace.format import unseal

    return unseal((run / RUN_FILE).read_bytes(), RunRecord)


def test_what_differs_besides_is_named_and_what_is_the_same_is_counted_in_one_line(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path, SOUND, SOUND)
    source = source_record()
    engine = source.engine.model_copy(update={"version": "0.33.0"})
    model = source.model.model_copy(update={"chat_template_digest": "41d0"})
    write_record(after.path, run_record(source_record(engine=engine, model=model)))
    told = build_before_after(before, open_run(after.path))
    assert told.differs == (
        Difference("chat template digest", None, "41d0"),
        Difference("engine version", "vllm 0.32.0", "vllm 0.33.0"),
    )
    assert {"model", "device", "workloads", "sampling"} <= set(told.same)
    assert "besides, chat template digest, engine version differ" in told.answer.matters
    text = flowing(before_after_text(told))
    assert "engine version vllm 0.32.0 → vllm 0.33.0" in text
    assert "chat template digest not recorded → 41d0" in text


def test_of_the_engines_settings_each_that_differs_is_named_in_words(tmp_path: Path) -> None:
    before, after = two_runs(tmp_path, SOUND, SOUND)
    for run, most in ((before, 8), (after, 16)):
        record = open_record(run.path)
        settings = {
            "scheduler_config": {"max_num_seqs": most, "policy": "fcfs"},
            "cache_config": {"sliding_window": None},
            "v2_model_runner": most > 8,
        }
        manifest = record.manifest.model_copy(update={"effective_args": settings})
        write_record(run.path, record.model_copy(update={"manifest": manifest}))
    told = build_before_after(open_run(before.path), open_run(after.path))
    assert set(told.differs) == {
        Difference("scheduler: max num seqs", "8", "16"),
        Difference("engine: v2 model runner", "no", "yes"),
    }
    assert "cache settings" in told.same
    assert "_config" not in before_after_text(told) + before_after_html(told)


def test_two_deployments_are_never_pooled(tmp_path: Path) -> None:
    twice = RunExample(traffic=(Traffic(requests=16),), live=1.5)
    told = told_of(tmp_path, SOUND, twice)
    assert told.answer.sure.text == "before: 8 requests, as served; after: 16 requests, as served"
    assert Difference("captured requests", "8", "16") in told.differs
    for report, number in ((told.before, 8), (told.after, 16)):
        assert sum(one.num_captured_requests for one in report.captured) == number
        assert len(report.sources) == 1


def flowing(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", PAIRS)
def test_the_headline_says_the_change_and_every_output_prints_the_answer_character_for_character(
    name: str, tmp_path: Path
) -> None:
    told = told_of(tmp_path, *PAIRS[name])
    answer = told.answer
    assert answer.headline == HEADLINES[name]
    assert (answer.kind, answer.state) == ("before/after", told.after.answer.state)
    assert len(answer.headline.split()) <= 14
    assert len(NUMBER.findall(answer.headline)) <= 2
    text, markdown = before_after_text(told), before_after_markdown(told)
    page = flowing(unescape(re.sub(r"<[^>]*>", "", before_after_html(told))))
    commands = [line for line in text.splitlines() if "/" in line or "\\" in line]
    assert max(columns(line) for line in text.splitlines() if line not in commands) <= 80
    assert len(markdown.splitlines()) <= MAX_LINES
    said = [answer.headline, *answer.where, *answer.matters, answer.sure.text]
    said += [f"{one.answer}: {one.because}" for one in answer.questions]
    for sentence in said:
        assert sentence in flowing(text)
    for sentence in [*said[: -len(answer.questions)], *(one.because for one in answer.questions)]:
        assert sentence in re.sub(r"\\(.)", r"\1", markdown)
        assert sentence in page or sentence[0].upper() + sentence[1:] in page
    for printed in (text, markdown, page):
        assert not re.search(r"\bworst\b|\bnothing above\b|CLIPS", printed)


def test_each_section_can_be_printed_alone(tmp_path: Path) -> None:
    told = told_of(tmp_path, SOUND, K_CLIPS)
    whole = before_after_text(told)
    for section in SECTIONS:
        assert before_after_text(told, section=section).rstrip() in whole


def test_the_command_takes_two_runs_in_every_format(tmp_path: Path) -> None:
    before, after = (one.path for one in two_runs(tmp_path, SOUND, K_CLIPS))
    told = kvtrace("report", before, after)
    assert told.returncode == 0, told.stderr
    assert "FAULT · before/after   Clipping is new" in told.stdout
    assert json.loads(kvtrace("report", before, after, "--json").stdout)["clips_after"] == 1
    assert "## ✕ FAULT · before/after" in kvtrace("report", before, after, "--format", "md").stdout
    page = kvtrace("report", before, after, "--format", "html").stdout
    assert page.startswith("<!DOCTYPE html>")
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)
    refused = kvtrace("report", before, after, "--section", "heads")
    assert refused.returncode == 2
    assert "--section heads: this report has none; it has answer, range, before-and-after" in refused.stderr


def test_more_than_two_are_refused_with_how_to_join_traces(tmp_path: Path) -> None:
    before, after = (one.path for one in two_runs(tmp_path, SOUND, K_CLIPS))
    refused = kvtrace("report", before, after, before)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "3 inputs: expected one, or two: before and after" in refused.stderr
    assert "kvtrace replay TRACE … -o RUN" in refused.stderr
