"""`kvtrace capture flags`: what it prints is what the plug-in and the shell take."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace_capture.settings import CaptureSettings, parse_settings
from support.run_cli import kvtrace

from kvtrace.trace.capture_names import CONNECTOR

if TYPE_CHECKING:
    from pathlib import Path


def commands(*arguments: object) -> dict[str, Any]:
    result = kvtrace("capture", "flags", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def settings(made: dict[str, Any]) -> CaptureSettings:
    """Return what the plug-in reads in the printed `--kv-transfer-config`."""
    words = shlex.split(made["serve_command"])
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert (config["kv_connector"], config["kv_role"]) == (CONNECTOR, "kv_both")
    return parse_settings(config["kv_connector_extra_config"])


def test_the_plug_in_reads_every_option_as_it_was_given(tmp_path: Path) -> None:
    made = commands(
        *("--model", "m", "-o", tmp_path, "--position-stride", 4, "--request-fraction", 0.5),
        *(
            "--layers",
            "29,0",
            "--byte-budget",
            "1.5GB",
            "--only-workload",
            "a b",
            "--only-workload",
            "c",
            "--off",
        ),
    )
    assert settings(made) == CaptureSettings(
        directory=tmp_path,
        enabled=False,
        position_stride=4,
        request_fraction=0.5,
        layers=(0, 29),
        byte_budget=1_500_000_000,
        workloads=("a b", "c"),
    )


def test_without_options_the_plug_ins_own_defaults_hold(tmp_path: Path) -> None:
    assert settings(commands("--model", "m", "-o", tmp_path)) == CaptureSettings(directory=tmp_path)


def test_hostile_names_stay_one_word_of_the_shell_and_one_string_of_python(tmp_path: Path) -> None:
    model, label = "a'; rm -rf $HOME #", "'''\\\" x"
    made = commands("--model", model, "-o", tmp_path / "a b", "--workload", label, "--id", "$(id)")
    assert shlex.split(made["serve_command"])[:3] == ["vllm", "serve", model]
    assert settings(made).directory == tmp_path / "a b"
    body = json.loads(shlex.split(made["curl_command"])[-1])
    assert body["model"] == model
    assert body["vllm_xargs"] == {"kvtrace_workload": label, "kvtrace_id": "$(id)"}
    compile(made["python_client"], "client", "exec")
    assert repr(label) in made["python_client"]


def test_the_text_holds_each_command_whole(tmp_path: Path) -> None:
    arguments = ("--model", "m", "-o", tmp_path, "--off")
    text, made = kvtrace("capture", "flags", *arguments).stdout, commands(*arguments)
    for name in ("serve_command", "curl_command", "python_client", "switch_on_command"):
        assert f"\n{made[name]}\n" in text
    assert commands("--model", "m", "-o", tmp_path)["switch_on_command"] is None


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--byte-budget", "much", "20GB"),
        ("--byte-budget", "0", "20GB"),
        ("--layers", "0-3", "0,1,29"),
        ("--request-fraction", "0", "--off"),
        ("--request-fraction", "1.5", "Invalid value"),
        ("--position-stride", "0", "Invalid value"),
        ("--workload", "", "expected 1 to 64 printable characters"),
        ("--workload", "chat\n", "expected 1 to 64 printable characters"),
        ("--only-workload", "x" * 65, "expected 1 to 64 printable characters"),
        ("--id", "x" * 257, "expected 1 to 256 printable characters"),
        ("--url", "ftp://host", "expected http:// or https://"),
    ],
)
def test_a_value_that_the_plug_in_would_refuse_is_refused_here(
    tmp_path: Path, option: str, value: str, expected: str
) -> None:
    result = kvtrace("capture", "flags", "--model", "m", "-o", tmp_path, option, value)
    assert result.returncode == 2
    assert result.stdout == ""
    assert expected in result.stderr
