"""The table of outcomes: what is kept, what pairs, and what files from strangers do to it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace_capture.privacy import hash_client_id, hash_prompt, key_id
from support.outcome_files import (
    LM_EVAL_NAME,
    inspect_log,
    inspect_sample,
    lm_eval_line,
    own_line,
    promptfoo_file,
    promptfoo_result,
    write_eval,
    write_json,
    write_lines,
)
from support.run_cli import kvtrace

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.table import all_rows, read_outcomes

if TYPE_CHECKING:
    from pathlib import Path

KEY = bytes(range(32))


def key_file(folder: Path) -> Path:
    path = folder / "kvtrace.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def test_ids_and_token_ids_are_hashed_as_the_plug_in_does_it(tmp_path: Path) -> None:
    lines = [own_line(id_, prompt_token_ids=[1, 2**31, 70_000]) for id_ in ("ticket 17", "\u202eé\u0301\n x")]
    path = write_lines(tmp_path / "o.jsonl", lines)
    result = kvtrace("outcomes", path, "--key", key_file(tmp_path), "-o", tmp_path / "t")
    assert result.stdout == "bf16-a: 2 answers: 2 pass\n", result.stderr
    table = read_outcomes(tmp_path / "t")
    assert (table.key, table.key_is_shared) == (key_id(KEY), True)
    assert [row.client_id for row in table.rows] == [hash_client_id(KEY, line["id"]) for line in lines]
    assert {row.prompt_hash for row in table.rows} == {hash_prompt(KEY, [1, 2**31, 70_000])}


def test_no_prompt_and_no_answer_is_kept(tmp_path: Path) -> None:
    write_lines(tmp_path / LM_EVAL_NAME, [lm_eval_line(1, 1.0)])
    write_json(tmp_path / "log.json", inspect_log([inspect_sample(1, "C")]))
    write_json(tmp_path / "r.json", promptfoo_file([promptfoo_result(1, True)]))
    write_lines(tmp_path / "o.jsonl", [own_line("a", prompt="question 1")])
    files = [f"v{n}={tmp_path / name}" for n, name in enumerate((LM_EVAL_NAME, "log.json", "r.json"))]
    assert kvtrace("outcomes", *files, tmp_path / "o.jsonl", "-o", tmp_path / "t").returncode == 0
    kept = (tmp_path / "t").read_text()
    assert "question" not in kept
    assert "2+2" not in kept
    assert all(row.prompt_digest for row in read_outcomes(tmp_path / "t").rows)


def test_every_kind_of_failure_is_counted_by_name(tmp_path: Path) -> None:
    kinds = ("pass", "fail", "malformed", "refused", "wrong_refusal", "timeout", "error", "unjudged")
    path = write_lines(tmp_path / "o.jsonl", [own_line(kind, kind) for kind in kinds])
    first, second = kvtrace("outcomes", path, "-o", tmp_path / "t").stdout.splitlines()
    assert first == (
        "bf16-a: 8 answers: 1 pass, 1 fail, 1 malformed, 1 refused, 1 wrong refusal, 1 timeout, 1 error, "
        "1 unjudged"
    )
    assert second.startswith("unjudged answers block every verdict")


def failed(*arguments: object) -> str:
    result = kvtrace("outcomes", *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_a_second_answer_to_one_prompt_is_refused_and_a_repetition_is_not(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line("a"), own_line("a", "fail")])
    assert "two answers to id a, repetition 0" in failed(path, "-o", tmp_path / "t")
    assert not (tmp_path / "t").exists()
    write_lines(path, [own_line("a"), own_line("a", "fail", repetition=1), own_line("a", task="other")])
    assert kvtrace("outcomes", path, "-o", tmp_path / "t").returncode == 0


def test_a_variant_must_be_said_once(tmp_path: Path) -> None:
    line = own_line("a")
    path = write_lines(tmp_path / "o.jsonl", [line])
    assert "is given as fp8" in failed(f"fp8={path}", "-o", tmp_path / "t")
    del line["variant"]
    write_lines(path, [line])
    assert "give it as VARIANT=FILE" in failed(path, "-o", tmp_path / "t")
    assert "expected VARIANT=FILE" in failed(f"={path}", "-o", tmp_path / "t")


def test_a_table_that_is_there_stays_without_force(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line("a")])
    (tmp_path / "t").write_text("mine")
    assert "exists" in failed(path, "-o", tmp_path / "t")
    assert (tmp_path / "t").read_text() == "mine"
    assert kvtrace("outcomes", path, "-o", tmp_path / "t", "--force").returncode == 0


def test_a_key_must_be_there_and_private(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line("a")])
    assert "does not exist" in failed(path, "-o", tmp_path / "t", "--key", tmp_path / "no.key")
    assert not (tmp_path / "no.key").exists()
    key_file(tmp_path).write_bytes(b"short")
    assert "the key has 5 bytes" in failed(path, "-o", tmp_path / "t", "--key", tmp_path / "kvtrace.key")
    key_file(tmp_path).chmod(0o666)
    assert "cannot be used as the key" in failed(
        path, "-o", tmp_path / "t", "--key", tmp_path / "kvtrace.key"
    )


GOOD = json.dumps(own_line("a")).encode()
HOSTILE = {
    "nesting": b'{"id": ' + b"[" * 100_000,
    "surrogate": b'{"id": "\\ud800", "outcome": "pass", "variant": "v"}',
    "huge integer": b'{"id": "a", "outcome": "pass", "variant": "v", "output_tokens": ' + b"9" * 5000 + b"}",
    "large integer": b'{"id": "a", "outcome": "pass", "variant": "v", "output_tokens": 1' + b"0" * 60 + b"}",
    "NaN": b'{"id": "a", "outcome": "pass", "variant": "v", "output_tokens": NaN}',
    "twice": b'{"id": "a", "id": "b", "outcome": "pass", "variant": "v"}',
    "latin": b'{"id": "\xff", "outcome": "pass", "variant": "v"}',
    "no object": b"[1]",
    "cut": GOOD[:-5],
    "zeros": b"\x00" * 100,
    "terminal": b'{"id": "a", "outcome": "\\u001b[31mred", "variant": "v"}',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("ending", ["jsonl", "json", "eval"])
def test_a_hostile_file_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, name: str, ending: str
) -> None:
    path = tmp_path / f"o.{ending}"
    path.write_bytes((GOOD + b"\n" if ending == "jsonl" else b"") + HOSTILE[name])
    said = failed(path, "-o", tmp_path / "t")
    assert str(path) in said
    assert "\x1b" not in said
    assert sorted(one.name for one in tmp_path.iterdir()) == [path.name]


@pytest.mark.parametrize(
    "sample",
    [
        inspect_sample("\x1b", "C", epoch=1, scores=[]),
        inspect_sample(1, {"a": 1}),
        inspect_sample(1, "X"),
        inspect_sample(1, "C", limit="x"),
        inspect_sample(1, "C") | {"id": None},
        inspect_sample(1, "C") | {"epoch": 2**70},
    ],
)
def test_an_odd_sample_of_inspect_is_refused(tmp_path: Path, sample: dict[str, Any]) -> None:
    path = write_json(tmp_path / "o.json", inspect_log([sample]))
    assert "sample 0: " in failed(f"v={path}", "-o", tmp_path / "t")


def test_pipes_devices_folders_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.eval").mkdir()
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name, said in (
        ("pipe.jsonl", "a pipe"),
        ("folder.eval", "a directory"),
        ("zero.json", "a device"),
        ("absent.jsonl", "No such file"),
    ):
        assert said in failed(tmp_path / name, "-o", tmp_path / "t")


def test_a_line_and_a_file_have_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line(str(n)) for n in range(4)])
    monkeypatch.setattr("kvtrace.outcomes.strict_files.MAX_OUTCOMES", 3)
    assert "more than 3 lines" in failed(path, "-o", tmp_path / "t")
    monkeypatch.setattr("kvtrace.outcomes.strict_files.LINE_BYTES", 20)
    assert "line 1: it is longer than 20 bytes" in failed(path, "-o", tmp_path / "t")


def test_an_archive_that_lacks_its_header_or_is_damaged_is_refused(tmp_path: Path) -> None:
    path = write_eval(tmp_path / "log.eval", [inspect_sample(1, "C", input="x" * 5000)])
    content = bytearray(path.read_bytes())
    content[content.find(b"samples/1") + 40] ^= 0xFF
    path.write_bytes(content)
    assert "log.eval" in failed(f"v={path}", "-o", tmp_path / "t")


def test_a_cut_or_changed_table_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line("a"), own_line("b")])
    kvtrace("outcomes", path, "-o", tmp_path / "t")
    header, first, second = (tmp_path / "t").read_text().splitlines()
    for content, said in (
        (f"{header}\n{first}\n", "has 1 rows, its header says 2"),
        (f"{first}\n", "cannot be read as a table of outcomes"),
        ("", "cannot be read as a table of outcomes"),
        (f"{header}\n{first}\n{second.replace('pass', 'passed')}\n", "line 3: outcome is 'passed'"),
        (header.replace('"1.0"', '"2.0"'), "is a table of version '2.0'"),
    ):
        (tmp_path / "t").write_text(content)
        with pytest.raises(OutcomesError, match=said):
            read_outcomes(tmp_path / "t")


def test_tables_under_different_keys_do_not_mix(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl", [own_line("a")])
    for name in ("t", "u"):
        kvtrace("outcomes", path, "-o", tmp_path / name)
    with pytest.raises(OutcomesError, match="hashed under different keys"):
        all_rows([read_outcomes(tmp_path / "t"), read_outcomes(tmp_path / "u")])
