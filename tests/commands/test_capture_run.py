"""`kvtrace capture run` up to the start of vLLM: prompts by line, a Python with vLLM, outputs kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.run_cli import Result, kvtrace

from kvtrace.capture.engine_log import reason_in_log
from kvtrace.capture.prompts import Prompt, read_prompts

GOOD = '{"prompt": "Hello", "workload": "chat"}'


def run(tmp_path: Path, *arguments: object, prompts: str = GOOD) -> Result:
    (tmp_path / "prompts.jsonl").write_text(prompts)
    return kvtrace(
        *("capture", "run", "--model", "m", "--prompts", tmp_path / "prompts.jsonl"),
        *("-o", tmp_path / "out.kvtrace", *arguments),
    )


def assert_one_line_error(result: Result, *expected: str) -> None:
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    for text in expected:
        assert text in result.stderr


def environment(folder: Path, **versions: str | None) -> Path:
    """Return a Python whose only packages are named: name → version; None: without a distribution."""
    packages = folder / "packages"
    for name, version in versions.items():
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
        if version is not None:
            (packages / f"{name}-{version}.dist-info").mkdir()
            (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {Path(sys.executable).resolve()} -S "$@"\n')
    python.chmod(0o755)
    return python


def test_prompts_and_messages_are_read_with_their_labels_and_empty_lines_passed_over(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n\n"
        + json.dumps({"messages": messages, "workload": "c", "id": "7", "max_tokens": 5}).encode()
    )  # fmt: skip
    assert read_prompts(path) == [
        Prompt(1, "chat", prompt="Hello"),
        Prompt(3, "c", messages=tuple(messages), id="7", max_tokens=5),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"workload": "chat"}', 'either "prompt" or "messages"'),
        ('{"prompt": "a", "messages": [], "workload": "chat"}', 'either "prompt" or "messages"'),
        ('{"prompt": "a"}', "has no workload"),
        ('{"prompt": "", "workload": "chat"}', "prompt is ''"),
        ('{"prompt": ["a"], "workload": "chat"}', "prompt is ['a']"),
        ('{"messages": [], "workload": "chat"}', "messages is expected"),
        ('{"messages": [{"role": "user"}], "workload": "chat"}', "messages is expected"),
        ('{"prompt": "a", "workload": "chat", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "workload": "chat", "max_tokens": true}', "max_tokens is True"),
        ('{"prompt": "a", "workload": "chat", "max_token": 3}', "has max_token; known are"),
        ('{"prompt": "a", "workload": "chat", "id": 7}', "id is 7"),
        ('{"prompt": "\\ud800", "workload": "chat"}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_by_its_number_before_anything_starts(
    tmp_path: Path, line: str, expected: str
) -> None:
    result = run(tmp_path, "--vllm-python", "/nowhere", prompts=f"{GOOD}\n\n{line}\n{GOOD}\n")
    assert_one_line_error(result, "prompts.jsonl: line 3: ", expected)
    assert not list(tmp_path.glob("*out*"))


def test_messages_for_a_model_without_a_chat_template_are_named_before_it_is_loaded(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer_config.json").write_text("{}")
    lines = f'{GOOD}\n{{"messages": [{{"role": "user", "content": "Hi"}}], "workload": "chat"}}\n'
    arguments = ("--vllm-python", "/nowhere", "--model", model)
    assert_one_line_error(
        run(tmp_path, *arguments, prompts=lines), "line 2: has messages", "no chat template"
    )
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert "/nowhere" in run(tmp_path, *arguments, prompts=lines).stderr


def test_bytes_that_are_no_text_are_a_bad_line_too(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(GOOD.encode() + b'\n{"prompt": "\xff"}\n')
    result = kvtrace("capture", "run", "--model", "m", "--prompts", path, "-o", tmp_path / "t.kvtrace")
    assert_one_line_error(result, "line 2: is not UTF-8")


def test_ten_bad_lines_are_named_and_the_others_counted(tmp_path: Path) -> None:
    assert_one_line_error(run(tmp_path, prompts="{\n" * 13), "line 1: ", "line 10: ", "and 3 more lines")


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    assert_one_line_error(run(tmp_path, prompts="\n\n"), "holds no prompt")


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({}, "has no vllm"),
        ({"vllm": "0.27.1"}, "has vLLM 0.27.1; expected 0.28 or newer"),
        ({"vllm": "0.32.0"}, "without the capture plug-in"),
        ({"vllm": "1.0", "kvtrace": "0.0.1", "kvtrace_capture": None}, "has kvtrace 0.0.1"),
    ],
)
def test_a_python_that_cannot_capture_is_refused_with_what_it_lacks(
    tmp_path: Path, versions: dict[str, str | None], expected: str
) -> None:
    python = environment(tmp_path / "env", **versions) if versions else environment(tmp_path, x=None)
    assert_one_line_error(run(tmp_path, "--vllm-python", python), str(python), expected)


def test_without_a_vllm_anywhere_the_option_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line_error(run(tmp_path), "no vLLM", "--vllm-python")
    assert_one_line_error(run(tmp_path, "--vllm-python", "/nowhere"), "/nowhere", "is not a Python that runs")


def test_what_exists_is_kept_unless_it_is_a_trace_to_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.kvtrace").mkdir()
    assert_one_line_error(run(tmp_path), "out.kvtrace: exists", "--force")
    assert_one_line_error(run(tmp_path, "--force"), "is not a trace")
    (tmp_path / "out.kvtrace").rename(tmp_path / "elsewhere")
    (tmp_path / "out.kvtrace").symlink_to(tmp_path / "elsewhere")
    assert_one_line_error(run(tmp_path, "--force"), "out.kvtrace: is a link")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("max_model_len", "NAME=VALUE"), ("=4", "NAME=VALUE"), ("kv_transfer_config={}", "is set by kvtrace")],
)
def test_an_engine_argument_that_cannot_be_passed_on_is_refused(
    tmp_path: Path, argument: str, expected: str
) -> None:
    assert_one_line_error(run(tmp_path, "--engine-arg", argument), "--engine-arg", expected)


def test_the_reason_in_a_log_is_the_end_of_its_first_traceback() -> None:
    log = (
        "INFO 11-29 17:01:01 [core.py:1] Error: none yet\n"
        "(EngineCore pid=7) ERROR 11-29 17:01:02 [core.py:1136] Traceback (most recent call last):\n"
        "(EngineCore pid=7) ERROR 11-29 17:01:02 [core.py:1136]   File x\n"
        "(EngineCore pid=7) ERROR 11-29 17:01:02 [core.py:1136] a.b.UnsupportedError: no \x1b[31mroom\n"
        "RuntimeError: Engine core initialization failed.\n"
    )
    assert reason_in_log(log) == "UnsupportedError: no \\x1b[31mroom"
    assert reason_in_log("INFO all is well\n") is None
