"""`kvtrace capture control`, against the part of the plug-in that obeys it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kvtrace_capture import sampling_switch
from kvtrace_capture.sampling_switch import SamplingSwitch
from kvtrace_capture.settings import SAMPLING_KEYS, CaptureSettings
from support.fabricate import fabricate_trace, request
from support.run_cli import Result, kvtrace

from kvtrace.capture.control import CONTROLLED, control_file
from kvtrace.trace.format import (
    COMMIT_FILE,
    SAMPLING_FILE,
    CommitRecord,
    seal,
    unseal,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_switch, "POLL_SECONDS", 0.01)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a capture directory with the trace of an engine that has not ended."""
    trace = fabricate_trace(
        tmp_path / "now.kvtrace",
        {(0, tensor): np.ones((2, 1, 8)) for tensor in ("k", "v")},
        request_of_row=[0, 0],
        position_of_row=[0, 1],
        requests=[request(0, prompt_tokens=2)],
    )
    file = trace / "rank-0.zarr" / COMMIT_FILE
    file.write_text(seal(unseal(file.read_bytes(), CommitRecord).model_copy(update={"closed": False})) + "\n")
    (trace / SAMPLING_FILE).unlink()  # the engine writes its own
    return tmp_path


@contextmanager
def engine(directory: Path) -> Iterator[SamplingSwitch]:
    settings = CaptureSettings(directory=directory)
    one = SamplingSwitch(control_file(directory), settings, directory / "now.kvtrace" / SAMPLING_FILE)
    try:
        yield one
    finally:
        one.close()


def control(directory: Path, *options: str) -> tuple[Result, dict[str, Any]]:
    result = kvtrace("capture", "control", directory, *options, "--json")
    return result, json.loads(result.stdout)


def test_it_changes_what_the_plug_in_lets_it_change() -> None:
    assert sorted(CONTROLLED) == sorted(SAMPLING_KEYS)


def test_a_running_engine_takes_a_change_and_the_command_says_so(directory: Path) -> None:
    with engine(directory) as one:
        result, told = control(directory, "--stride", "4", "--workload", "chat")
        assert result.returncode == 0
        assert told["taken"] is True
        assert told["in_force"]["position_stride"] == 4
        assert (one.current.settings.position_stride, one.current.settings.workloads) == (4, ("chat",))


def test_what_is_not_named_stays_as_it_was_asked_for(directory: Path) -> None:
    with engine(directory) as one:
        control(directory, "--stride", "4", "--byte-budget", "2GB")
        _, told = control(directory, "--off")
        assert told["asked_for"] == {"position_stride": 4, "byte_budget": 2_000_000_000, "enabled": False}
        assert (told["taken"], one.current.settings.enabled) == (True, False)
        control(directory, "--on")
        assert (one.current.settings.enabled, one.current.settings.position_stride) == (True, 4)


def test_reset_goes_back_to_what_the_engine_was_started_with(directory: Path) -> None:
    with engine(directory):
        control(directory, "--stride", "4")
        result, told = control(directory, "--reset")
        assert (result.returncode, told["asked_for"]) == (0, {})
        assert not control_file(directory).exists()


def test_where_no_engine_runs_the_change_is_written_and_not_called_taken(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.commands.capture_control._WAIT_S", 0.05)
    with engine(directory):
        pass
    result, told = control(directory, "--stride", "4")
    assert (result.returncode, told["taken"]) == (3, False)
    assert json.loads(control_file(directory).read_text()) == {"position_stride": 4}
    assert control_file(directory).stat().st_mode & 0o777 == 0o600
    text = kvtrace("capture", "control", directory, "--stride", "5").stdout
    assert "No engine took it within" in text


def test_status_changes_nothing(directory: Path) -> None:
    with engine(directory):
        result, told = control(directory, "--status")
    assert (result.returncode, told["taken"], told["asked_for"]) == (0, None, {})
    assert told["in_force"]["position_stride"] == CaptureSettings(directory=directory).position_stride
    assert not control_file(directory).exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [("[]", "is no JSON object"), ('{"layers": [0]}', "has 'layers'"), ("{", "cannot be read as JSON")],
)
def test_a_control_file_that_the_engine_would_refuse_is_named_and_how_it_is_removed(
    directory: Path, content: str, said: str
) -> None:
    control_file(directory).write_text(content)
    result = kvtrace("capture", "control", directory, "--stride", "4")
    assert result.returncode == 2
    assert said in result.stderr
    assert "--reset" in result.stderr
    assert control_file(directory).read_text() == content


@pytest.mark.parametrize("options", [("--status", "--off"), ("--reset", "--on"), ("--status", "--reset")])
def test_options_that_contradict_each_other_are_refused(directory: Path, options: tuple[str, ...]) -> None:
    assert kvtrace("capture", "control", directory, *options).returncode == 2


def test_a_directory_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = kvtrace("capture", "control", tmp_path / "nowhere", "--off")
    assert (result.returncode, result.stdout) == (2, "")
    assert "is not a directory" in result.stderr
