"""The decision: invalid cell, proven breach, what lacks, retain, promote; each by the files behind it."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 -- pytest reads the annotations
from typing import Any

import pytest
from support.decide_files import BF16, FP8, HELD, POLICY, Case, check_outcome, metrics_page
from support.run_cli import kvtrace

from kvtrace.decide.decision import Decision


def ids(decision: dict[str, Any], word: str) -> set[str]:
    return {reason["id"] for reason in decision["reasons"] if reason["word"] == word}


def steps(decision: dict[str, Any]) -> list[str]:
    return [step["id"] for step in decision["next"]]


def test_more_useful_answers_and_none_lost_is_promoted(tmp_path: Path) -> None:
    case = Case(tmp_path)
    result = case.decide("--json")
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    Decision.model_validate(found)
    assert found["word"] == "promote"
    # of 40 in 10 s 12, 13, 14 are late before and 6, 7, 8 now: 0.6 a second more in every pair
    assert found["all"]["baseline"] == pytest.approx(2.7)
    assert found["all"]["difference"]["mean"] == pytest.approx(0.6)
    assert ids(found, "promote") == {"answers-within", "goodput-gained", "fits-back"}
    assert found["cell"]["candidate"] == "C1"
    assert found["cell"]["held"] == HELD
    assert {one["kind"] for one in found["evidence"]} == {"serving", "quality", "capacity", "policy"}


def test_as_many_useful_answers_retain_the_baseline(tmp_path: Path) -> None:
    case = Case(tmp_path, slow={BF16: (8, 9, 10), FP8: (9, 8, 10)})
    found = case.decision()
    assert (found["word"], ids(found, "retain")) == ("retain", {"no-gain"})
    assert case.decide().returncode == 4


def test_lost_answers_roll_back_and_a_clipping_check_says_calibrate(tmp_path: Path) -> None:
    case = Case(tmp_path, losses=60, check=check_outcome("clip_error_frac"))
    found = case.decision()
    assert found["word"] == "roll back"
    assert ids(found, "roll back") == {"answers-lost", "activations-breach"}
    assert steps(found) == ["calibrate"]
    assert case.decide().returncode == 1
    # an SQNR can be low by rounding alone: no scales would mend it
    case.check = check_outcome("sqnr_db")
    assert steps(case.decision()) == []


def test_a_full_cache_whose_answers_are_lost_names_layers_to_leave_out(tmp_path: Path) -> None:
    pages = {
        BF16: metrics_page("auto", blocks=100, tokens=1600, kv_cache_usage_perc=1.0),
        FP8: metrics_page("fp8", blocks=200, tokens=3200, kv_cache_usage_perc=0.97),
    }
    assert steps(Case(tmp_path, losses=60, metrics=pages).decision()) == ["exclude-layers"]


def test_a_class_that_loses_useful_answers_rolls_back_though_all_gain(tmp_path: Path) -> None:
    # the slow ones before are the first ones of both classes; now all late ones are long
    case = Case(tmp_path, slow={BF16: (16, 16, 16), FP8: (0, 0, 0)})
    arguments = case.files()
    for number in range(3):
        file = tmp_path / f"{FP8}-{number}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in [one for one in lines if one["prompt_tokens"] == 4000][: 12 + number]:
            line["first_token_s"], line["finished_s"] = line["planned_s"] + 3, line["planned_s"] + 4
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # the table is made anew of the changed files
    files = [f"{name}={tmp_path / f'{name}-{n}.jsonl'}" for name in (BF16, FP8) for n in range(3)]
    assert kvtrace("serving", *files, "--load", "open", "-o", arguments[1], "--force").returncode == 0
    result = kvtrace(*arguments, "--json")
    found = json.loads(result.stdout)
    assert found["word"] == "roll back"
    # long: 8 of 20 late before, 12, 13, 14 now
    lost = [reason["of"] for reason in found["reasons"] if reason["id"] == "goodput-lost"]
    assert lost == ["long"]


def test_too_many_rejections_roll_back(tmp_path: Path) -> None:
    rejected = {"status": "rejected", "accepted": None}
    found = Case(tmp_path, fields={FP8: rejected}).decision()
    assert {"rejected", "goodput-lost"} <= ids(found, "roll back")


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"leave_out": ("quality",)}, {"quality-not-measured"}),
        ({"leave_out": ("capacity",)}, {"way-back-not-measured"}),
        ({"check": check_outcome("clipped_frac", "0" * 64)}, {"check-other-policy"}),
        ({"pairs": 50}, {"quality-too-few"}),
        ({"slow": {BF16: (12, 13), FP8: (6, 7, 8)}}, {"runs-too-few"}),
        ({"fields": {FP8: {"accepted": None}}}, {"unjudged"}),
        ({"slow": {BF16: (10, 12, 14), FP8: (12, 5, 4)}}, {"gain-not-told"}),
        ({"policy": POLICY + "[serving.classes.huge]\nprompt_tokens = [8192, 9000]\nttft_ms = 1\n"},
         {"class-not-measured"}),
        ({"policy": POLICY.replace('"worst"', '"simulated"')}, {"way-back-not-measured"}),
    ],
)  # fmt: skip
def test_what_lacks_is_named_and_nothing_is_promoted(
    tmp_path: Path, change: dict[str, Any], lacking: set[str]
) -> None:
    case = Case(tmp_path, **change)
    found = case.decision()
    assert (found["word"], ids(found, "collect more")) == ("collect more", lacking)
    assert case.decide().returncode == 3


def test_answers_compared_by_other_limits_do_not_count(tmp_path: Path) -> None:
    case = Case(tmp_path, losses=60)
    arguments = case.files()
    (tmp_path / "policy.toml").write_text(POLICY + "# changed after the comparison\n")
    found = json.loads(kvtrace(*arguments, "--json").stdout)
    assert (found["word"], ids(found, "collect more")) == ("collect more", {"quality-other-policy"})


def test_a_cell_that_cannot_be_served_is_invalid_and_has_a_reason(tmp_path: Path) -> None:
    case = Case(tmp_path, slow={BF16: (12, 13, 14)})
    why = "the CPU backend takes no FP8 cache without AVX-512"
    case.manifests[FP8] = {"kv_dtype": "fp8", "unsupported": why}
    found = case.decision()
    assert (found["word"], ids(found, "invalid cell")) == ("invalid cell", {"unsupported-cell"})
    assert (found["classes"], found["all"]) == ([], None)
    # what was measured of the baseline stays, and nothing of the candidate is a zero
    baseline, candidate = found["variants"]
    assert baseline["all"]["goodput"]["mean"] == pytest.approx(2.7)
    assert (candidate["num_runs"], candidate["all"]["goodput"]) == (0, None)
    assert why in case.decide().stdout
    assert case.decide("--format", "html").stdout.count("not measured") >= 3


def test_a_cell_is_either_served_or_not(tmp_path: Path) -> None:
    case = Case(tmp_path)
    arguments = case.files()
    (tmp_path / "no.json").write_text(json.dumps({"unsupported": "no such backend"}))
    files = [f"{FP8}={tmp_path / f'{FP8}-0.jsonl'}", "--manifest", f"{FP8}={tmp_path / 'no.json'}"]
    result = kvtrace("serving", *files, "-o", tmp_path / "x")
    assert (result.returncode, result.stdout) == (2, "")
    assert "fp8: its manifest says that it cannot be served, and a file is of it" in result.stderr
    assert arguments[0] == "decide"


def test_a_restart_is_said_and_asks_for_another_run(tmp_path: Path) -> None:
    page = metrics_page("fp8", blocks=200, tokens=3200, num_requests_running=4)
    started = [f"# scraped_at {n}\nprocess_start_time_seconds {at}\n{page}" for n, at in ((1, 5), (2, 9))]
    case = Case(tmp_path, metrics={FP8: "".join(started)})
    found = case.decision()
    assert (found["word"], ids(found, "collect more")) == ("collect more", {"restarted"})
    assert "started anew 1 time" in case.decide().stdout


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"load": "closed"}, "closed-loop"),
        (
            {"manifests": {BF16: HELD, FP8: HELD | {"weights_digest": "other"}}},
            "held-constant-differs",
        ),
        ({"manifests": {BF16: {"interval": 30.0}}}, "other-interval"),
        (
            {"metrics": {FP8: metrics_page("auto", blocks=1, tokens=16, num_requests_running=1)}},
            "silent-fallback",
        ),
        (
            {
                "manifests": {},
                "metrics": {
                    name: metrics_page("auto", blocks=1, tokens=16, num_requests_running=1)
                    for name in (BF16, FP8)
                },
            },
            "same-cache-dtype",
        ),
    ],
)
def test_an_invalid_cell_is_no_failed_score(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    case = Case(tmp_path, losses=60, **change)
    found = case.decision()
    assert (found["word"], ids(found, "invalid cell")) == ("invalid cell", {why})
    assert case.decide().returncode == 2


@pytest.mark.parametrize(
    ("manifest", "cell"),
    [
        ({"kv_dtype": "fp8"}, "C1"),
        ({"kv_dtype": "fp8_e4m3", "scale_artifact_sha256": "s"}, "C2"),
        ({"kv_dtype": "fp8", "scale_artifact_sha256": "s", "skipped_layers": [0]}, "C3"),
        ({}, None),
    ],
)
def test_the_cell_is_that_of_the_manifest(tmp_path: Path, manifest: dict[str, Any], cell: str | None) -> None:
    found = Case(tmp_path, manifests={BF16: HELD, FP8: HELD | manifest}).decision()
    assert found["cell"]["candidate"] == cell
    approved = any(one.startswith("who approved") for one in found["not_measured"])
    assert approved == (cell in ("C2", "C3"))


def test_another_backend_makes_a_bundle_and_stays_valid(tmp_path: Path) -> None:
    manifests = {BF16: HELD | {"attention_backend": "A"}, FP8: HELD | {"attention_backend": "B"}}
    found = Case(tmp_path, manifests=manifests).decision()
    assert (found["word"], found["cell"]["is_bundle"]) == ("promote", True)


def test_a_limit_that_does_not_fit_the_baseline_is_named(tmp_path: Path) -> None:
    # 64 MiB in BF16: 1,638 blocks of 16, 32 to a request of 512: 51 requests
    found = Case(tmp_path, limit=80).decision()
    assert found["word"] == "promote"
    assert ids(found, "promote") == {"answers-within", "goodput-gained", "limit-to-set"}
    assert (found["way_back"]["limit"], found["way_back"]["limit_to_set"]) == (80, 51)


@pytest.mark.parametrize(
    ("usage", "expected"), [(0.4, ["offer-more"]), (0.99, ["raise-admission"]), (None, [])]
)
def test_the_next_experiment_is_named_from_what_was_seen(
    tmp_path: Path, usage: float | None, expected: list[str]
) -> None:
    gauges = {"num_requests_running": 1.0} | ({} if usage is None else {"kv_cache_usage_perc": usage})
    pages = {
        BF16: metrics_page("auto", blocks=100, tokens=1600, **gauges),
        FP8: metrics_page("fp8", blocks=100, tokens=1600, **gauges),
    }
    found = Case(tmp_path, slow={BF16: (8, 9, 10), FP8: (9, 8, 10)}, metrics=pages).decision()
    assert (found["word"], steps(found)) == ("retain", expected)


def test_latency_that_did_not_fall_with_the_memory_names_the_kernels(tmp_path: Path) -> None:
    pages = {
        BF16: metrics_page("auto", blocks=100, tokens=1600, num_requests_running=1),
        FP8: metrics_page("fp8", blocks=200, tokens=3200, num_requests_running=1),
    }
    found = Case(tmp_path, slow={BF16: (8, 9, 10), FP8: (9, 8, 10)}, metrics=pages).decision()
    assert steps(found) == ["profile-decode"]


def test_text_and_markdown_say_the_same_in_order(tmp_path: Path) -> None:
    case = Case(tmp_path, losses=60, check=check_outcome("clipped_frac"), limit=80)
    text, markdown = case.decide().stdout, case.decide("--format", "md").stdout
    assert text.startswith("✕ ROLL BACK   fp8 in place of bf16-a\n")
    assert all(len(line) <= 80 for line in text.splitlines())
    sections = [
        "BREACHED",
        "NEXT",
        "ANSWERS LOST",
        "USEFUL GOODPUT",
        "ROOM, AND THE WAY BACK",
        "NOT MEASURED",
    ]
    places = [text.index(f"\n{section}") for section in sections]
    assert places == sorted(places)
    assert "before going back set --max-num-seqs 51 (now" in text
    assert markdown.startswith("## ✕ Roll back: fp8 in place of bf16-a\n")
    assert "- `calibrate` new scales of a trace of this traffic" in markdown
    assert "| all | 600 | +10 |" in markdown


@pytest.mark.parametrize(
    ("option", "content", "reason"),
    [
        ("--quality", "{}", "has no schema_version 1; expected what kvtrace quality compare --json prints"),
        ("--capacity", "[", "cannot be read as JSON"),
        ("--check", '{"schema_version": "1.1"}', "Field required; expected what kvtrace check --json prints"),
        ("--quality", '{"schema_version": "1.0", "verdict": "fine"}', "verdict: Input should be"),
    ],
)
def test_evidence_that_is_something_else_is_one_clear_line(
    tmp_path: Path, option: str, content: str, reason: str
) -> None:
    case = Case(tmp_path, leave_out=("quality", "capacity"))
    (tmp_path / "e.json").write_text(content)
    result = case.decide(option, tmp_path / "e.json")
    assert (result.returncode, result.stdout) == (2, "")
    assert f"{tmp_path / 'e.json'}: " in result.stderr
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_several_candidates_must_be_chosen_from(tmp_path: Path) -> None:
    case = Case(tmp_path, leave_out=("quality", "capacity"))
    result = case.decide("--candidate", "fp4")
    assert result.returncode == 2
    assert "--candidate: expected one of the variants beside the baseline: fp8" in result.stderr
