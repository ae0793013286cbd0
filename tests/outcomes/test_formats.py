"""What each tool's file says of an answer. All files here are made by hand after the tools' source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.outcome_files import (
    LM_EVAL_NAME,
    aiperf_files,
    inspect_log,
    inspect_sample,
    lm_eval_line,
    own_line,
    promptfoo_file,
    promptfoo_result,
    write_eval,
    write_json,
    write_lines,
    write_zstandard_eval,
)

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.formats import read_answers
from kvtrace.outcomes.source import Choices, Source

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.outcomes.outcome import Answer


def answers(path: Path, **choices: Any) -> list[Answer]:
    return list(read_answers(Source(path, "v", Choices(**choices)))[1])


def kinds(path: Path, **choices: Any) -> dict[str, str]:
    return {one.id: one.outcome for one in answers(path, **choices)}


def test_own_outcomes_keep_what_they_say(tmp_path: Path) -> None:
    line = own_line(
        "ticket-17", "malformed", repetition=2, task="extract", cluster="doc-4", reason="no JSON",
        output_tokens=21, tags={"language": "de", "evidence": "middle"}, prompt_token_ids=[5, 7],
    )  # fmt: skip
    (found,) = answers(write_lines(tmp_path / "o.jsonl", [line]))
    assert (found.id, found.variant, found.repetition, found.task) == ("ticket-17", "bf16-a", 2, "extract")
    assert (found.cluster, found.outcome, found.reason, found.output_tokens) == (
        "doc-4", "malformed", "no JSON", 21,
    )  # fmt: skip
    assert found.tags == (("evidence", "middle"), ("language", "de"))
    assert found.prompt_token_ids == (5, 7)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outcome": "maybe"}, "outcome is 'maybe', expected one of pass, fail"),
        ({"outcome": ["pass"]}, "outcome is"),
        ({"id": ""}, "id is '', expected a text that is not empty"),
        ({"id": "x" * 257}, "id has 257 characters"),
        ({"repetition": -1}, "repetition is -1"),
        ({"repetition": True}, "repetition is True"),
        ({"repetition": None}, "repetition is None"),
        ({"colour": "red"}, "has 'colour'; known are id"),
        ({"tags": {"a=b": "c"}}, "a tag's name"),
        ({"tags": {str(n): "c" for n in range(33)}}, "it has 33 tags"),
        ({"tags": {"a": 1}}, "a is 1, expected a text"),
        ({"prompt_token_ids": [2**32]}, "prompt_token_ids"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids"),
        ({"response_id": "resp_1"}, "response_id is 'resp_1', expected chatcmpl-… or cmpl-…"),
        ({"request_id": "a", "response_id": "cmpl-b"}, "request_id is 'a', and its response_id has 'b'"),
    ],
)
def test_an_own_line_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line("a"), own_line("b") | change])
    with pytest.raises(OutcomesError) as error:
        answers(path)
    assert str(error.value).startswith(f"{path}: line 2: {reason}")


def test_lm_evals_task_comes_from_the_files_name_and_the_document_pairs(tmp_path: Path) -> None:
    found = answers(write_lines(tmp_path / LM_EVAL_NAME, [lm_eval_line(3, 1.0), lm_eval_line(4, 0.0)]))
    assert [(one.task, one.id, one.outcome) for one in found] == [
        ("needle", "3", "pass"), ("needle", "4", "fail"),
    ]  # fmt: skip
    other = write_lines(tmp_path / LM_EVAL_NAME, [lm_eval_line(3, 1.0, doc_hash="other")])
    assert answers(other)[0].prompt != found[0].prompt


def test_several_filters_or_metrics_of_lm_eval_must_be_chosen_from(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / LM_EVAL_NAME,
        [lm_eval_line(3, 1.0), lm_eval_line(3, 0.0, filter="flexible-extract")],
    )
    with pytest.raises(OutcomesError, match="choose with --filter"):
        answers(path)
    assert kinds(path, filter="flexible-extract") == {"3": "fail"}
    with pytest.raises(OutcomesError, match="no line of the filter 'none'"):
        answers(path, filter="none")
    both = lm_eval_line(3, 0.0, metrics=["acc", "acc_norm"], acc=1.0, acc_norm=0.0)
    write_lines(path, [both])
    with pytest.raises(OutcomesError, match="choose the one that decides with --metric"):
        answers(path)
    assert kinds(path, metric="acc") == {"3": "pass"}


@pytest.mark.parametrize("score", [0.5, float("nan"), "1", 10**30])
def test_a_metric_that_is_neither_0_nor_1_is_refused(tmp_path: Path, score: Any) -> None:
    path = write_lines(tmp_path / LM_EVAL_NAME, [lm_eval_line(3, score)])
    with pytest.raises(OutcomesError, match="expected 0 or 1"):
        answers(path)


SAMPLES = [
    inspect_sample(1, "C"),
    inspect_sample(2, "I"),
    inspect_sample(3, "N"),
    inspect_sample(4, 1.0),
    inspect_sample(5, False),
    inspect_sample(6, "C", error={"message": "x", "traceback": "y"}),
    inspect_sample(7, "C", limit={"type": "time", "limit": 60}),
    inspect_sample(8, "C", limit={"type": "token", "limit": 60}),
    inspect_sample(9, "I", output={"choices": [{"stop_reason": "content_filter"}]}),
    inspect_sample(10, None, scores=None),
]
JUDGED = {
    "1": "pass", "2": "fail", "3": "fail", "4": "pass", "5": "fail", "6": "error", "7": "timeout",
    "8": "fail", "9": "refused", "10": "unjudged",
}  # fmt: skip


def test_an_inspect_log_says_the_same_as_json_and_as_an_archive(tmp_path: Path) -> None:
    assert kinds(write_json(tmp_path / "log.json", inspect_log(SAMPLES))) == JUDGED
    assert kinds(write_eval(tmp_path / "log.eval", SAMPLES)) == JUDGED
    assert {one.repetition for one in answers(tmp_path / "log.eval")} == {1}


def test_partial_credit_counts_as_the_user_says(tmp_path: Path) -> None:
    path = write_json(tmp_path / "log.json", inspect_log([inspect_sample(1, "P")]))
    with pytest.raises(OutcomesError, match="say what it counts as with --partial"):
        answers(path)
    assert kinds(path, partial="fail") == {"1": "fail"}


def test_of_several_scorers_one_must_be_chosen(tmp_path: Path) -> None:
    scores = {"match": {"value": "C"}, "model": {"value": float("nan")}}
    path = write_json(tmp_path / "log.json", inspect_log([inspect_sample(1, "C", scores=scores)]))
    with pytest.raises(OutcomesError, match="--metric"):
        answers(path)
    assert kinds(path, metric="match") == {"1": "pass"}
    with pytest.raises(OutcomesError, match="nan, expected 0 or 1"):
        answers(path, metric="model")


def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.outcomes.formats.inspect_log._MEMBER_BYTES", 2_000)
    path = write_eval(tmp_path / "log.eval", [inspect_sample(1, "C", input="x" * 3_000)])
    with pytest.raises(OutcomesError, match="larger than 2,000 bytes when unpacked"):
        answers(path)


def test_aiperf_keeps_failed_requests_and_leaves_out_warm_up(tmp_path: Path) -> None:
    path = aiperf_files(
        tmp_path,
        {"a": (True, False), "b": (False, False), "c": (False, True), "w": (True, False)},
        {
            "a": {},
            "b": {},
            "c": {},
            "d": {"error": {"code": 503, "type": "Service Unavailable", "message": "m"}},
            "e": {"error": {"code": None, "type": "RequestTimeoutError", "message": "m"}},
            "f": {"metadata": {"was_cancelled": True}},
            "g": {},
            "w": {"metadata": {"benchmark_phase": "warmup"}},
        },
    )
    assert kinds(path) == {
        "ca/0": "pass", "cb/0": "fail", "cc/0": "malformed", "cd/0": "error", "ce/0": "timeout",
        "cf/0": "error", "cg/0": "unjudged",
    }  # fmt: skip
    (tmp_path / "profile_export.jsonl").unlink()
    with pytest.raises(OutcomesError, match=r"expected profile_export\.jsonl beside it"):
        answers(path)


def test_an_aiperf_grade_of_an_unknown_request_is_refused(tmp_path: Path) -> None:
    path = aiperf_files(tmp_path, {"a": (True, False), "b": (True, False)}, {"a": {}})
    with pytest.raises(OutcomesError, match="grades 1 requests that are not in"):
        answers(path)


def test_promptfoos_errors_are_told_from_failed_assertions(tmp_path: Path) -> None:
    results = [
        promptfoo_result(0, True),
        promptfoo_result(1, False),
        promptfoo_result(2, False, failureReason=2),
    ]
    path = write_json(tmp_path / "results.json", promptfoo_file(results))
    assert kinds(path) == {"0/0": "pass", "1/0": "fail", "2/0": "error"}


def test_a_cached_answer_or_a_second_provider_of_promptfoo_is_refused(tmp_path: Path) -> None:
    cached = promptfoo_result(0, True, response={"output": "4", "cached": True})
    path = write_json(tmp_path / "results.json", promptfoo_file([cached]))
    with pytest.raises(OutcomesError, match="result 0: was answered from promptfoo's cache"):
        answers(path)
    two = [promptfoo_result(0, True), promptfoo_result(1, True, provider={"id": "other"})]
    write_json(path, promptfoo_file(two))
    with pytest.raises(OutcomesError, match="write a file for each"):
        answers(path)


def test_a_file_of_no_known_format_is_named_with_those_that_are(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", '{"a": 1}\n'), ("a.json", "{}"), ("a.txt", "x")):
        (tmp_path / name).write_text(content)
        with pytest.raises(OutcomesError, match=r"of no format that is known; expected outcomes\.jsonl"):
            answers(tmp_path / name)


@pytest.mark.parametrize("damage", [None, "cut", "checksum"])
def test_an_inspect_log_packed_with_zstandard_is_read(tmp_path: Path, damage: str | None) -> None:
    path = write_zstandard_eval(tmp_path / "l.eval", [inspect_sample("a", "C")], damage)
    if damage is None:
        assert kinds(path) == {"a": "pass"}
    else:
        with pytest.raises(OutcomesError, match="cannot be unpacked"):
            kinds(path)
