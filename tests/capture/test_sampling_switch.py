"""The control file, as an operator writes it, and what a running engine makes of it."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace_capture import sampling_switch
from kvtrace_capture.sampling_switch import SamplingSwitch, read_control
from kvtrace_capture.settings import CaptureSettings, SettingsError

from kvtrace.trace.format import SamplingRecord, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_switch, "POLL_SECONDS", 0.01)


@contextmanager
def switch(folder: Path, **settings: Any) -> Iterator[SamplingSwitch]:
    one = SamplingSwitch(
        folder / "control.json", CaptureSettings(directory=folder, **settings), folder / "sampling.jsonl"
    )
    try:
        yield one
    finally:
        one.close()


def write(folder: Path, content: object, mode: int = 0o600) -> Path:
    """Write the control file the documented way: whole, for its owner, renamed into place."""
    fresh = folder / "control.json.new"
    fresh.write_text(content if isinstance(content, str) else json.dumps(content))
    fresh.chmod(mode)
    return fresh.replace(folder / "control.json")


def wait_for(one: SamplingSwitch, sampling_id: int) -> CaptureSettings:
    deadline = time.monotonic() + 5
    while one.current.sampling_id != sampling_id:
        assert time.monotonic() < deadline, f"still sampling {one.current.sampling_id}"
        time.sleep(0.005)
    return one.current.settings


def records(folder: Path) -> list[SamplingRecord]:
    return [unseal(line, SamplingRecord) for line in (folder / "sampling.jsonl").read_text().splitlines()]


def test_without_a_control_file_the_start_up_configuration_holds(tmp_path: Path) -> None:
    with switch(tmp_path, position_stride=8) as one:
        assert one.current.settings.position_stride == 8
    (record,) = records(tmp_path)
    assert (record.sampling_id, record.position_stride, record.request_fraction) == (0, 8, 1.0)
    assert stat.S_IMODE((tmp_path / "sampling.jsonl").stat().st_mode) == 0o600


def test_each_change_is_recorded_under_a_number_of_its_own(tmp_path: Path) -> None:
    with switch(tmp_path, enabled=False, request_fraction=0.5) as one:
        write(tmp_path, {"enabled": True, "position_stride": 2, "workloads": ["chat"]})
        settings = wait_for(one, 1)
        assert (settings.enabled, settings.position_stride, settings.workloads) == (True, 2, ("chat",))
        write(tmp_path, {"enabled": True, "byte_budget": 1000})
        wait_for(one, 2)
        write(tmp_path, {"enabled": False})
        assert not wait_for(one, 3).enabled
        (tmp_path / "control.json").unlink()
        time.sleep(0.1)
        assert one.current.sampling_id == 3  # the start-up configuration is off too
    found = records(tmp_path)
    assert [record.request_fraction for record in found] == [0.0, 0.5, 0.5, 0.0]
    assert [record.position_stride for record in found] == [16, 2, 16, 16]
    assert [record.byte_budget for record in found] == [None, None, 1000, None]
    assert [record.workloads for record in found] == [None, ("chat",), None, None]
    assert sorted(record.started_at for record in found) == [record.started_at for record in found]


def test_a_control_file_that_is_there_at_the_start_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"enabled": False})
    with switch(tmp_path) as one:
        assert not one.current.settings.enabled
    assert [record.request_fraction for record in records(tmp_path)] == [0.0]


def test_a_rewritten_file_that_says_the_same_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"position_stride": 4})
    with switch(tmp_path) as one:
        write(tmp_path, {"position_stride": 4, "enabled": True})
        time.sleep(0.1)
        assert one.current.sampling_id == 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"enabled": fal', "it is not JSON"),
        ("[true]", "it is not a JSON object"),
        ({"enable": False}, "'enable' cannot be changed"),
        ({"request_fraction": 2}, "request_fraction is 2"),
        ('{"request_fraction": 1' + "0" * 400 + "}", "request_fraction is 1000"),
        ("[" * 60_000, "it is not JSON"),
        ('{"workloads": ["\\ud800"]}', "is never the label of a request"),
        ('{"workloads": ["' + "x" * 70_000 + '"]}', "larger than 65536 bytes"),
    ],
    ids=[
        "cut",
        "list",
        "unknown key",
        "out of range",
        "beyond any float",
        "nested",
        "half a character",
        "huge",
    ],
)
def test_a_broken_file_is_logged_once_and_the_old_sampling_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: object, text: str
) -> None:
    with switch(tmp_path, position_stride=4) as one:
        write(tmp_path, content)
        time.sleep(0.2)
        assert (one.current.sampling_id, one.current.settings.position_stride) == (0, 4)
        errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert text in errors[0]
        assert str(tmp_path / "control.json") in errors[0]
        write(tmp_path, {"position_stride": 2})
        assert wait_for(one, 1).position_stride == 2


def test_a_file_that_others_may_write_is_not_followed(tmp_path: Path) -> None:
    path = write(tmp_path, {"enabled": False}, mode=0o620)
    with pytest.raises(SettingsError, match="mode 0620; expected the engine's own user or root"):
        read_control(path, CaptureSettings(directory=tmp_path))


def test_a_pipe_in_place_of_the_file_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "control.json", 0o600)
    with pytest.raises(SettingsError, match="not a regular file"):
        read_control(tmp_path / "control.json", CaptureSettings(directory=tmp_path))


def test_rules_that_cannot_be_recorded_are_not_put_in_force_but_off_is_and_is_recorded_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trace = tmp_path / "trace"
    trace.mkdir()
    one = SamplingSwitch(
        tmp_path / "control.json", CaptureSettings(directory=tmp_path), trace / "sampling.jsonl"
    )
    try:
        trace.rename(tmp_path / "elsewhere")
        write(tmp_path, {"position_stride": 2})
        errors = wait_for_errors(caplog, 1)
        assert "stays as it is" in errors[-1]
        assert one.current.settings.position_stride == 16
        write(tmp_path, {"enabled": False})
        errors = wait_for_errors(caplog, 2)
        assert "capture is off" in errors[-1]
        assert not wait_for(one, 1).enabled
        (tmp_path / "elsewhere").rename(trace)
        write(tmp_path, {"position_stride": 4})
        wait_for(one, 2)
    finally:
        one.close()
    found = [(r.sampling_id, r.position_stride, r.request_fraction) for r in records(trace)]
    assert found == [(0, 16, 1.0), (1, 16, 0.0), (2, 4, 1.0)]
    assert len(wait_for_errors(caplog, 2)) == 2


def wait_for_errors(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    deadline = time.monotonic() + 5
    while True:
        errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        if len(errors) >= count:
            return errors
        assert time.monotonic() < deadline, errors
        time.sleep(0.005)
