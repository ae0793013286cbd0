"""Verdicts of paired quality, from answers made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.outcome_files import own_line
from support.outcome_tables import answers, table
from support.run_cli import kvtrace

DOCS = Path(__file__).parents[2] / "docs"
LIMITS = ("--margin", 0.01, "--floor", 0.5)


def compared(folder: Path, lines: list[dict[str, Any]], *options: object, code: int | None = None) -> Any:
    result = kvtrace("quality", "compare", table(folder, lines), *(options or LIMITS), "--json")
    assert result.returncode in (0, 1, 3), result.stderr
    content = json.loads(result.stdout)
    jsonschema.validate(content, json.loads((DOCS / "quality.schema.json").read_text()))
    if code is not None:
        assert (content["verdict"], result.returncode) == (content["verdict"], code)
    return content


def first_segment(content: Any) -> Any:
    return content["variants"][0]["segments"][0]


def refused(folder: Path, lines: list[dict[str, Any]], *options: object) -> str:
    result = kvtrace("quality", "compare", table(folder, lines), *(options or LIMITS))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_368_pairs_without_a_lost_answer_are_within_one_percent_and_367_are_too_few(tmp_path: Path) -> None:
    one = first_segment(compared(tmp_path, answers(368), code=0))
    assert (one["verdict"], round(one["difference"]["high"], 5)) == ("within", 0.00997)
    few = first_segment(compared(tmp_path, answers(367), code=3))
    assert (few["verdict"], few["reason_id"]) == ("too few to tell", "interval-reaches-across")
    assert few["pairs_missing"] == 1


def test_many_lost_answers_are_breached_and_listed_for_review(tmp_path: Path) -> None:
    content = compared(tmp_path, answers(400, lost=24, won=4), code=1)
    one = first_segment(content)
    assert (one["verdict"], one["reason_id"]) == ("breached", "loss-beyond-margin")
    assert one["difference"]["loss"] == pytest.approx(0.05)
    assert one["difference"]["mcnemar_p"] == pytest.approx(1.79992e-4, rel=1e-4)
    assert (one["num_baselines"], one["noise_discordant_frac"], one["more_than_noise"]) == (2, 0.0, True)
    assert [row["kind"] for row in content["review"]] == ["lost"] * 24 + ["won"] * 4
    assert content["review"][0]["id"] == "00000"


def test_a_second_run_of_bf16_that_loses_as_much_shows_that_it_is_noise(tmp_path: Path) -> None:
    content = compared(tmp_path, answers(400, lost=5, won=5, noise=(6, 6)))
    one = first_segment(content)
    # Against bf16-a alone: lost 5, won 5, and 6 more that only bf16-b passes fail in both bf16-a and fp8.
    assert (one["difference"]["num_lost"], one["difference"]["num_won"]) == (5, 5)
    assert one["noise_discordant_frac"] == pytest.approx(12 / 400)
    assert one["more_than_noise"] is False
    # Failures: fp8 5 + 6; bf16-a 5 + 6; bf16-b 5 + 6.
    assert one["difference"]["loss"] == pytest.approx((2 * 11 - 11 - 11) / 800)
    assert (content["noise_pair"]["num_lost"], content["noise_pair"]["num_won"]) == (6, 6)


def test_an_answer_that_one_run_of_bf16_lost_too_is_called_lost_once(tmp_path: Path) -> None:
    lines = answers(400, noise=(2, 0))
    for line in lines:
        if line["id"] == "00000" and line["variant"] == "fp8":
            line |= {"outcome": "timeout", "reason": "60 s"}
    (row,) = compared(tmp_path, lines)["review"]
    assert (row["kind"], row["baseline"], row["noise"], row["candidate"], row["reason"]) == (
        "lost once", "pass", "fail", "timeout", "60 s",
    )  # fmt: skip


def test_a_baseline_under_its_floor_cannot_tell_and_is_never_within(tmp_path: Path) -> None:
    one = first_segment(
        compared(tmp_path, answers(1000, failing=900), "--margin", 0.05, "--floor", 0.5, code=3)
    )
    assert (one["verdict"], one["reason_id"]) == ("cannot tell", "baseline-under-the-floor")
    lost = first_segment(compared(tmp_path, answers(1000, lost=300, failing=600), *LIMITS, code=1))
    assert lost["reason_id"] == "loss-beyond-margin", "a proven loss is one, whatever the floor"


def test_a_variant_under_the_floor_is_breached_and_one_near_it_is_too_few(tmp_path: Path) -> None:
    limits = ("--margin", 0.3, "--floor", 0.9)
    under = first_segment(compared(tmp_path, answers(1000, lost=150, failing=50), *limits, code=1))
    assert under["reason_id"] == "under-the-floor"
    near = first_segment(compared(tmp_path, answers(1000, lost=40, failing=50), *limits, code=3))
    assert (near["reason_id"], near["verdict"]) == ("floor-not-shown", "too few to tell")


@pytest.mark.parametrize("kind", ["malformed", "refused", "wrong_refusal", "timeout", "error"])
def test_every_kind_of_failure_is_a_lost_answer(tmp_path: Path, kind: str) -> None:
    lines = [
        line | {"outcome": kind} if line["outcome"] == "fail" else line for line in answers(400, lost=24)
    ]
    assert first_segment(compared(tmp_path, lines, code=1))["difference"]["num_lost"] == 24


def test_an_unjudged_answer_blocks_the_verdict(tmp_path: Path) -> None:
    lines = answers(400)
    lines[5]["outcome"] = "unjudged"
    content = compared(tmp_path, lines, code=3)
    assert content["variants"][0]["num_unjudged"] == 1
    assert first_segment(content)["reason_id"] == "unjudged"


def test_up_to_five_percent_may_be_unpaired_and_they_are_counted(tmp_path: Path) -> None:
    lines = answers(1000)
    kept = [line for line in lines if not (line["variant"] == "fp8" and int(line["id"]) < 50)]
    content = compared(tmp_path, kept, code=0)
    assert (content["variants"][0]["num_paired"], content["variants"][0]["num_unpaired"]) == (950, 50)
    kept = [line for line in lines if not (line["variant"] == "fp8" and int(line["id"]) < 51)]
    assert first_segment(compared(tmp_path, kept, code=3))["reason_id"] == "unpaired"


def test_without_a_second_run_of_bf16_there_is_no_verdict_unless_the_policy_allows_it(tmp_path: Path) -> None:
    lines = [line for line in answers(400) if line["variant"] != "bf16-b"]
    assert first_segment(compared(tmp_path, lines, code=3))["reason_id"] == "no-noise-pair"
    allowed = policy(tmp_path, "noise_pair = false")
    one = first_segment(compared(tmp_path, lines, "--policy", allowed, code=0))
    assert (one["num_baselines"], one["more_than_noise"]) == (1, None)


def test_answers_to_different_prompts_under_one_id_are_an_error(tmp_path: Path) -> None:
    lines = answers(10)
    lines[2]["prompt"] = "another"
    assert "id 00000: the answers of bf16-a and fp8 are not to the same prompt; 1 differ" in refused(
        tmp_path, lines
    )
    lines = answers(10)
    lines[4]["tags"] = {"language": "de"}
    assert "different clusters or tags" in refused(tmp_path, lines)


def test_pairs_do_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    lines = answers(400, lost=9, won=1)
    assert first_segment(compared(tmp_path, lines)) == first_segment(compared(tmp_path, lines[::-1]))


def test_answers_of_one_document_count_as_one_cluster(tmp_path: Path) -> None:
    lines = answers(400, lost=24)
    for line in lines:
        line["cluster"] = f"doc-{int(line['id']) // 8}"
    one = first_segment(compared(tmp_path, lines))
    assert (one["difference"]["num_pairs"], one["difference"]["num_clusters"]) == (400, 50)
    assert one["difference"]["mcnemar_p"] is None
    alone = first_segment(compared(tmp_path, answers(400, lost=24)))
    assert one["difference"]["high"] > alone["difference"]["high"]


def test_repetitions_of_one_prompt_pair_apart_and_are_one_cluster(tmp_path: Path) -> None:
    lines = [line | {"repetition": n} for n in range(3) for line in answers(200)]
    one = first_segment(compared(tmp_path, lines))
    assert (one["difference"]["num_pairs"], one["difference"]["num_clusters"]) == (600, 200)


def policy(folder: Path, text: str, top: str = "") -> Path:
    path = folder / "policy.toml"
    path.write_text(f'name = "p"\ndate = 2026-11-01\n{top}\n[quality]\nmargin = 0.01\nfloor = 0.5\n{text}\n')
    return path


def test_a_protected_segment_has_its_own_limits_and_its_own_verdict(tmp_path: Path) -> None:
    german = answers(400, lost=24, tags={"language": "de"})
    english = [line | {"id": f"e{line['id']}"} for line in answers(4000, tags={"language": "en"})]
    text = 'protected = ["language=de", "language=fr"]\n[quality.own."language=de"]\nmargin = 0.02'
    content = compared(tmp_path, german + english, "--policy", policy(tmp_path, text), code=1)
    whole, german_one, french = content["variants"][0]["segments"]
    assert (whole["segment"], whole["difference"]["num_pairs"]) == ("all", 4400)
    assert (german_one["verdict"], german_one["margin"]) == ("breached", 0.02)
    assert (french["verdict"], french["difference"], french["pairs_missing"]) == (
        "too few to tell",
        None,
        368,
    )


def test_fewer_pairs_than_the_policy_asks_for_are_too_few(tmp_path: Path) -> None:
    one = first_segment(
        compared(tmp_path, answers(400), "--policy", policy(tmp_path, "pairs = 1500"), code=3)
    )
    assert (one["reason_id"], one["pairs_missing"]) == ("too-few-pairs", 1100)


def test_looks_are_counted_and_more_than_planned_are_too_few(tmp_path: Path) -> None:
    options = ("--policy", policy(tmp_path, "looks = 2"), "--looks", tmp_path / "looks.jsonl")
    assert "plans 2 looks; name the file" in refused(tmp_path, answers(600), *options[:2])
    first = compared(tmp_path, answers(600), *options, code=0)
    assert (first["looks_taken"], first["looks_planned"]) == (1, 2)
    assert first_segment(first)["difference"]["high"] == pytest.approx(1 - 0.0125 ** (1 / 600))
    assert compared(tmp_path, answers(600), *options)["looks_taken"] == 1, "the same data are the same look"
    assert compared(tmp_path, answers(700), *options, code=0)["looks_taken"] == 2
    third = compared(tmp_path, answers(800), *options, code=3)
    assert first_segment(third)["reason_id"] == "too-many-looks"


def test_a_record_of_looks_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "looks.jsonl").write_text('{"a": 1}\n')
    assert "line 1: pairs is None" in refused(
        tmp_path, answers(10), *LIMITS, "--looks", tmp_path / "looks.jsonl"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "quality.colour: no such key; expected one of floor"),
        ('protected = ["de"]', "expected to be name=value"),
        ('protected = ["a=b", "a=b"]', "there twice"),
        ('[quality.own."a=b"]\nmargin = 0.1', "not in protected"),
        ("looks = 0", "quality.looks"),
        ("pairs = 1.5", "quality.pairs"),
        ("floor = 0.5", "not TOML"),
    ],
)
def test_a_policy_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, answers(10), "--policy", policy(tmp_path, text))


def test_limits_must_be_there_and_be_said_once(tmp_path: Path) -> None:
    assert "--margin and --floor" in refused(tmp_path, answers(10), "--margin", 0.01)
    path = policy(tmp_path, "")
    assert "leave out" in refused(tmp_path, answers(10), "--policy", path, "--floor", 0.5)
    assert "margin" in refused(tmp_path, answers(10), "--margin", 2, "--floor", 0.5)
    assert "--baseline names another" in refused(tmp_path, answers(10), *LIMITS, "--baseline", "base")


def test_no_text_says_that_variants_are_equal_and_the_verdict_comes_first(tmp_path: Path) -> None:
    result = kvtrace("quality", "compare", table(tmp_path, answers(368)), *LIMITS)
    lines = result.stdout.splitlines()
    assert lines[1] == "WITHIN, by limits of the command line"
    assert "equal" not in result.stdout
    assert "loss 0 (-0.997 % to +0.997 %), against both runs" in " ".join(result.stdout.split())
    assert max(map(len, lines)) <= 80


def test_the_review_list_is_short_for_people_and_harmless_to_a_terminal(tmp_path: Path) -> None:
    lines = answers(400, lost=24)
    lines[0]["id"] = lines[1]["id"] = lines[2]["id"] = "\x1b[31mred"
    shown = kvtrace("quality", "compare", table(tmp_path, lines), *LIMITS).stdout
    assert "and 14 more: --json has them" in shown
    assert "\x1b" not in shown


def test_a_policy_of_quality_is_a_policy_of_check_too(tmp_path: Path) -> None:
    from kvtrace.gate.policy import load_policy

    path = tmp_path / "policy.toml"
    path.write_text(
        'schema_version = "1.1"\nname = "p"\ndate = 2026-11-01\n[limits]\nsqnr_db = 20\n[coverage]\n'
        'requests = 1\ntokens = 1\n[[segments]]\nname = "all"\n[quality]\nmargin = 0.01\nfloor = 0.5\n'
    )
    limits = load_policy(path).policy.quality
    assert limits is not None
    assert limits.margin == 0.01
    compared(tmp_path, answers(400), "--policy", path, code=0)


def test_one_variant_of_three_decides_the_whole(tmp_path: Path) -> None:
    extra = [own_line(f"{n:05}", variant="int8", prompt=f"p{n}") for n in range(400)]
    content = compared(tmp_path, answers(400, lost=24) + extra, code=1)
    assert {one["variant"]: one["verdict"] for one in content["variants"]} == {
        "fp8": "breached",
        "int8": "within",
    }
