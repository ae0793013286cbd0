"""The answer: what state, about which scales, where, what to do; and that every output prints it alike."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest
from support.answer_limits import beyond_limits
from support.examples import run_of

from kvtrace.findings.rules import DIAGNOSED
from kvtrace.findings.run.example import CLIPS, Clipped, RunExample, Traffic
from kvtrace.report.answer.model import Answer, HarmedHead
from kvtrace.report.build import build_report
from kvtrace.report.html.render import report_html
from kvtrace.report.markdown import report_markdown
from kvtrace.report.terminal.text import report_text
from kvtrace.report.wording import columns
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.report.sections import Report

K_CLIPS = RunExample(sums={(0, 0, "k"): CLIPS}, clipped={(0, 0, "k"): Clipped()})
EXAMPLES = {
    f"{rule.id}-{number}": example
    for rule in DIAGNOSED
    for number, example in enumerate(rule.invalid)
    if isinstance(example, RunExample)
} | {"sound": RunExample()}
SHOWN = {
    "sound": RunExample(),
    "what-if": K_CLIPS,
    "served": RunExample(sums=K_CLIPS.sums, clipped=K_CLIPS.clipped, live=1.5),
    "not loaded": RunExample(live=1.0),
    "too few": RunExample(traffic=(Traffic(requests=4),)),
    "invalid": RunExample(invalid_as="scale-count"),
}


def report_of(example: RunExample, folder: Path) -> Report:
    return build_report(open_run(run_of(example, folder / "run")))


def answer_of(example: RunExample, folder: Path) -> Answer:
    return report_of(example, folder).answer


def flowing(text: str) -> str:
    return " ".join(text.split())


def test_scales_that_cover_what_they_did_not_serve_are_a_sound_what_if(tmp_path: Path) -> None:
    answer = answer_of(RunExample(), tmp_path)
    assert (answer.state, answer.kind) == ("sound", "what-if")
    assert answer.headline == "These scales would cover this traffic: nothing clips"
    assert answer.action.until is None
    # 400 of 448.
    assert answer.where == ("closest to the edge: layer 0 head 0 K, 0.89 × of what is covered",)


def test_a_head_that_would_clip_is_named_with_its_energy_and_a_command(tmp_path: Path) -> None:
    answer = answer_of(K_CLIPS, tmp_path)
    assert (answer.state, answer.kind) == ("fault", "what-if")
    assert answer.headline == "These scales would clip K in 1 of 2 heads"
    assert answer.most_harmed == HarmedHead(0, 0, "k")
    assert answer.where[0] == "layer 0 head 0 K"
    assert answer.matters[0] == "layer 0 head 0 K loses 5.0 % of its energy to clipping"
    assert answer.action.command is not None
    assert answer.action.command.startswith("kvtrace calibrate")
    assert answer.action.until is None
    assert answer.questions[0].answer == "If served, yes"


def test_scales_that_ran_are_said_in_the_indicative_with_a_stop_gap(tmp_path: Path) -> None:
    served = RunExample(sums=K_CLIPS.sums, clipped=K_CLIPS.clipped, live=1.5)
    answer = answer_of(served, tmp_path)
    assert (answer.state, answer.kind) == ("fault", "drift")
    assert answer.headline == "The scales do not cover K in 1 of 2 heads"
    assert answer.action.until == "with --kv-cache-dtype bfloat16"
    assert answer.questions[0].answer == "Yes"


def test_scales_that_did_not_run_though_they_were_meant_to_are_not_loaded(tmp_path: Path) -> None:
    answer = answer_of(RunExample(live=1.0), tmp_path)
    assert (answer.state, answer.kind) == ("fault", "not loaded")
    assert answer.headline == "The engine did not use these scales in layer 0"


def test_drift_names_its_workload(tmp_path: Path) -> None:
    drift = RunExample(
        traffic=(Traffic("code", 4), Traffic("chat")),
        sums=K_CLIPS.sums,
        clipped={(0, 0, "k"): Clipped(workload="code")},
    )
    assert answer_of(drift, tmp_path).where == ("layer 0 head 0 K", "in workload code")


def test_too_few_requests_are_a_state_of_their_own(tmp_path: Path) -> None:
    answer = answer_of(RunExample(traffic=(Traffic(requests=4),)), tmp_path)
    assert (answer.state, answer.sure.level) == ("too few", "low")
    assert answer.headline == "Too few requests to tell"


def test_scales_that_cannot_be_used_are_invalid_and_no_score(tmp_path: Path) -> None:
    answer = answer_of(RunExample(invalid_as="scale-count"), tmp_path)
    assert answer.kind == "invalid"
    assert answer.headline == "These scales cannot be used as asked"
    assert answer.ruler == ()
    assert (answer.questions[0].answer, answer.questions[0].because) == (
        "– not measured",
        "nothing was judged",
    )
    assert answer.most_harmed is None
    assert answer.matters == ("shipped cannot be used: its scales cannot be used",)
    assert (answer.sure.level, answer.sure.text) == ("high", "8 requests, nothing was judged")


def test_the_page_calls_scales_that_cannot_be_used_invalid_and_says_why(tmp_path: Path) -> None:
    run = open_run(run_of(RunExample(invalid_as="scale-count"), tmp_path / "run"))
    page = report_html(build_report(run), run)
    row, *_ = re.findall(r"<tr><th scope=\"row\">shipped.*?</tr>", page.partition('id="formats"')[2])
    assert "cannot be used: its scales cannot be used" in row
    assert flowing(re.sub("<[^>]*>", " ", row)).endswith("– invalid –")


def test_nothing_ever_says_that_it_is_not_the_scales_from_clipping_alone(tmp_path: Path) -> None:
    (scales, cache_format, release) = answer_of(RunExample(), tmp_path).questions
    assert scales.answer == "Nothing clips"
    assert cache_format.answer == "– not measured"
    assert release.answer == "– not decided"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_answer_is_short_and_every_output_prints_it_character_for_character(
    name: str, tmp_path: Path
) -> None:
    report = report_of(EXAMPLES[name], tmp_path)
    answer = report.answer
    text, markdown = report_text(report, section="answer"), report_markdown(report)
    assert beyond_limits(report) == ()
    assert max(map(columns, text.splitlines())) <= 80
    said = (answer.headline, *answer.where, *answer.matters, answer.sure.text)
    for sentence in (*said, *(f"{one.answer}: {one.because}" for one in answer.questions)):
        assert sentence in flowing(text)
    plain = re.sub(r"\\(.)", r"\1", markdown)
    for sentence in said:
        assert sentence in plain


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_prints_the_answer_character_for_character(name: str, tmp_path: Path) -> None:
    run = open_run(run_of(SHOWN[name], tmp_path / "run"))
    report = build_report(run)
    answer = report.answer
    page = report_html(report, run).partition('<section id="answer"')[2].partition("</section>")[0]
    shown = flowing(unescape(re.sub(r"<[^>]*>", "", page)))
    said = [answer.headline, *answer.where, *answer.matters, answer.sure.text]
    said += [text for text in (answer.action.text, answer.action.command, answer.action.until) if text]
    said += [text for one in answer.questions for text in (one.answer, one.because)]
    for sentence in said:
        assert sentence in shown or sentence[0].upper() + sentence[1:] in shown
    assert not re.search(r"\bworst\b|\bnothing above\b|CLIPS", shown)


@pytest.mark.parametrize("name", EXAMPLES)
def test_banned_words_are_in_no_output(name: str, tmp_path: Path) -> None:
    report = report_of(EXAMPLES[name], tmp_path)
    for printed in (report_text(report), report_markdown(report)):
        assert "CLIPS" not in printed
        assert not re.search(r"\bworst\b|\bnothing above\b", printed, re.IGNORECASE)


@pytest.mark.parametrize(
    "rule", [one for one in DIAGNOSED if one.role != "all-clear"], ids=lambda rule: rule.id
)
def test_a_rule_that_can_lead_an_answer_has_a_headline_of_at_most_12_words(rule: object) -> None:
    if rule.id in ("rounding-floor", "bf16-rounding"):  # type: ignore[attr-defined]  # notes by their nature
        return
    for headline in (rule.headline, rule.what_if or rule.headline):  # type: ignore[attr-defined]
        assert callable(headline) or 0 < len(headline.split()) <= 12
