"""`kvtrace quality run` up to vLLM, which a file of answers stands in for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from support.run_cli import Result, kvtrace
from support.stand_ins import answers_to
from support.word_counter import count_words

from kvtrace.fixture.make import LengthClass, Request, write_fixture
from kvtrace.outcomes.table import read_outcomes
from kvtrace.trace.keyed import key_name
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a fixture, a model, and answers of which FP8 gets one wrong."""
    write_fixture(
        Request((LengthClass("short", 450),), ("en",), 1, 3, "messages", 64),
        count_words, tmp_path / "f", {},
    )  # fmt: skip
    answers_to(tmp_path / "f", tmp_path)
    return tmp_path


def run(folder: Path, *arguments: object, variants: tuple[str, ...] = ("bf16", "bf16", "fp8")) -> Result:
    return kvtrace(
        *("quality", "run", "--model", folder / "model", "--vllm-python", folder / "python"),
        *(part for name in variants for part in ("--variant", name)),
        *("--prompts", folder / "f" / "prompts.jsonl", "--cases", folder / "f" / "cases.jsonl"),
        *("--engine-arg", f"answers={folder / 'answers.json'}", "-o", folder / "out", *arguments),
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_answers_are_judged_and_compared_and_the_result_has_neither_prompt_nor_answer(folder: Path) -> None:
    done = run(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "bf16-a: STAND_IN, 7 of 7 passed\nbf16-b: STAND_IN, 7 of 7 passed\nfp8: STAND_IN, 6 of 7 passed"
        in (done.stdout)
    )
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert names == ["answers.outcomes", "kvtrace.key", "quality-run.json", "scores.parquet"]
    texts = [(folder / "out" / name).read_bytes() for name in ("answers.outcomes", "quality-run.json")]
    scores = pq.read_table(folder / "out" / "scores.parquet").to_pylist()
    kept = b"".join([*texts, repr(scores).encode()])
    for line in lines(folder / "f" / "prompts.jsonl"):
        register, record = line["messages"][0]["content"].split("\n")[0::4][:2]
        assert register.encode() not in kept
        assert record.encode() not in kept
    assert b"nominal_torque" not in kept
    table = read_outcomes(folder / "out" / "answers.outcomes")
    assert [(row.variant, row.id, row.reason) for row in table.rows if not row.passed] == [
        ("fp8", "record-en-short-end-0", "missing_field")
    ]
    assert all(row.prompt_hash and row.client_id for row in table.rows)
    compared = kvtrace(
        *("quality", "compare", folder / "out" / "answers.outcomes", "--margin", "0.05", "--floor", "0.5")
    )
    assert "record/record-en-short-end-0" in compared.stdout
    scored = kvtrace(
        *("quality", "compare", folder / "out" / "answers.outcomes", "--margin", "0.05", "--floor", "0.5"),
        *("--scores", folder / "out" / "scores.parquet"),
    )
    assert "fp8, the baseline's answers, scored: " in scored.stdout
    assert "fp8: 6 of 7 answers are the same to their end" in scored.stdout


def test_every_variant_gets_all_prompts_in_an_order_of_its_own(folder: Path) -> None:
    assert run(folder, "--engine-arg", 'refused=["fp8"]', "--engine-arg", "x=1").returncode == 3
    # The order shows in the table of outcomes, which is in the order of answers.
    table = read_outcomes(folder / "out" / "answers.outcomes")
    orders = [[row.id for row in table.rows if row.variant == name] for name in ("bf16-a", "bf16-b")]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_a_variant_that_the_machine_refuses_is_invalid_with_its_reason_and_the_others_go_on(
    folder: Path,
) -> None:
    done = run(folder, "--engine-arg", 'refused=["fp8"]')
    assert done.returncode == 3
    assert "fp8: INVALID: ValueError: this machine has no fp8 cache" in done.stdout
    result = json.loads((folder / "out" / "quality-run.json").read_text())
    states = {one["name"]: one["invalid"] for one in result["variants"]}
    assert states == {"bf16-a": None, "bf16-b": None, "fp8": "ValueError: this machine has no fp8 cache"}
    assert "Traceback" in (folder / "out" / "fp8.log").read_text()
    assert {row.variant for row in read_outcomes(folder / "out" / "answers.outcomes").rows} == {
        "bf16-a",
        "bf16-b",
    }


def test_a_cache_that_is_another_than_asked_for_is_invalid_and_no_score(folder: Path) -> None:
    done = run(folder, "--engine-arg", "served=auto")
    assert done.returncode == 3
    assert "fp8: INVALID: the engine serves auto" in done.stdout


def test_a_baseline_that_cannot_be_run_is_one_line(folder: Path) -> None:
    done = run(folder, "--engine-arg", 'refused=["bfloat16"]')
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the baseline bf16-a cannot be run: ValueError: this machine has no bfloat16 cache" in done.stderr


def test_a_killed_run_goes_on_where_it_was_and_ends_as_one_that_was_not(folder: Path) -> None:
    assert run(folder, "-o", folder / "whole", "--engine-arg", "dies_after=99").returncode == 0
    stopped = run(folder, "--engine-arg", "dies_after=3")
    assert stopped.returncode == 2
    assert "RuntimeError: killed" in stopped.stderr
    half = (folder / "out" / "work" / "bf16-a" / "answers.jsonl").read_text()
    assert half.count("\n") == 3
    assert not half.endswith("\n")
    other = run(folder, "--engine-arg", "dies_after=4")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "holds the work of a run with other prompts, variants or settings" in other.stderr
    for _ in range(2):  # bf16-b and fp8 are killed once too
        assert run(folder, "--engine-arg", "dies_after=3").returncode == 2
    done = run(folder, "--engine-arg", "dies_after=3")
    assert done.returncode == 0, done.stderr
    scores, rows = (
        [read(folder / name) for name in ("out", "whole")]
        for read in (
            lambda out: pq.read_table(out / "scores.parquet").to_pylist(),
            lambda out: [row.pair_key for row in read_outcomes(out / "answers.outcomes").rows],
        )
    )
    assert scores[0] == scores[1]
    assert rows[0] == rows[1]
    assert not (folder / "out" / "work").exists()


def test_the_baselines_capture_lies_beside_its_answers_under_one_key(folder: Path) -> None:
    done = run(folder, "--capture")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "answers.outcomes", "bf16.kvtrace", "kvtrace.key", "quality-run.json", "scores.parquet"
    ]  # fmt: skip
    trace = open_trace(folder / "out" / "bf16.kvtrace")
    key = (folder / "out" / "kvtrace.key").read_bytes()
    assert trace.record.privacy is not None
    assert trace.record.privacy.key_id == key_name(key)
    assert read_outcomes(folder / "out" / "answers.outcomes").key == key_name(key)


def test_what_is_there_is_kept_unless_it_is_a_run_to_be_overwritten(folder: Path) -> None:
    assert run(folder).returncode == 0
    again = run(folder)
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    broken = run(folder, "--force", "--engine-arg", "dies_after=3")
    assert broken.returncode == 2
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir() if path.is_file()} == before
    assert run(folder, "--force").returncode == 0
    after = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    assert after.keys() == before.keys()
    assert after["kvtrace.key"] != before["kvtrace.key"]
    (folder / "else").mkdir()
    (folder / "else" / "file").touch()
    other = run(folder, "--force", "-o", folder / "else")
    assert "is not a run of kvtrace quality" in other.stderr
    assert (folder / "else" / "file").exists()


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        (("fp8",), "the first one must be bf16"),
        (("bf16", "fp8", "fp8=x"), "the name fp8 is there twice; give it one, as NAME:fp8=x"),
        (("bf16", "FP8!"), "expected bf16, DTYPE, DTYPE=DIR or NAME:DTYPE=DIR"),
        (("bf16", "fp8=/nowhere"), "/nowhere has no config.json, so it is not a checkpoint"),
    ],
)
def test_a_variant_that_cannot_be_meant_is_one_line(
    folder: Path, variants: tuple[str, ...], expected: str
) -> None:
    done = run(folder, variants=variants)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert expected in done.stderr
    assert not (folder / "out").exists()


def test_prompts_need_ids_and_a_key_of_their_own(folder: Path) -> None:
    prompts = folder / "f" / "prompts.jsonl"
    content = prompts.read_text()
    prompts.write_text(
        content.replace('"id"', '"Id"', 1).replace('"Id": "record-en-short-beginning-0", ', "")
    )
    assert "line 1: has no id" in run(folder).stderr
    prompts.write_text(content + content.splitlines()[0] + "\n")
    assert "line 8: has the id record-en-short-beginning-0 of another line" in run(folder).stderr
    prompts.write_text(content.replace("numeric-en-short-end-0", "other"))
    assert "has other ids than" in run(folder).stderr
