"""A folder of traces: which there are, which is the latest, and what is told of the choice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.errors import NotATraceError
from kvtrace.trace.folder import TraceEntry, chosen_trace, traces_in
from kvtrace.trace.folder_text import folder_text, state_of
from kvtrace.trace.format import TRACE_FILE, TraceRecord, seal, unseal

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_700_000_000.0


def trace(path: Path, created_at: float, num_rows: int = 4) -> Path:
    tensors = {(0, tensor): np.ones((num_rows, 1, 8)) for tensor in ("k", "v")}
    rows = list(range(num_rows))
    fabricate_trace(
        path,
        tensors,
        request_of_row=[0] * num_rows,
        position_of_row=rows,
        requests=[request(0, prompt_tokens=num_rows)],
    )
    file = path / TRACE_FILE
    file.write_text(
        seal(unseal(file.read_bytes(), TraceRecord).model_copy(update={"created_at": created_at})) + "\n"
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose latest trace is neither the first nor the last by name, and one that is cut."""
    trace(tmp_path / "a.kvtrace", NOON)
    trace(tmp_path / "b.kvtrace", NOON + 60, num_rows=7)
    trace(tmp_path / "c.kvtrace", NOON - 60)
    (tmp_path / "d.kvtrace").mkdir()
    (tmp_path / "kvtrace.key").write_bytes(b"0" * 32)
    return tmp_path


def test_traces_come_latest_first_and_what_cannot_be_read_last(folder: Path) -> None:
    found = traces_in(folder)
    assert [entry.path.name for entry in found] == ["b.kvtrace", "a.kvtrace", "c.kvtrace", "d.kvtrace"]
    assert [entry.num_rows for entry in found] == [7, 4, 4, None]
    assert "expected a directory with trace.json" in (found[-1].problem or "")


def test_a_folder_means_its_latest_trace_and_says_so(folder: Path) -> None:
    path, told = chosen_trace(folder)
    assert path == folder / "b.kvtrace"
    assert told is not None
    assert "b.kvtrace is taken, the latest of 3 traces" in told


def test_a_trace_means_itself(folder: Path) -> None:
    assert chosen_trace(folder / "a.kvtrace") == (folder / "a.kvtrace", None)


def test_a_path_that_is_neither_is_left_to_who_opens_it(tmp_path: Path) -> None:
    assert chosen_trace(tmp_path) == (tmp_path, None)
    assert chosen_trace(tmp_path / "nowhere") == (tmp_path / "nowhere", None)


def test_a_folder_whose_traces_are_all_broken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.kvtrace").mkdir()
    with pytest.raises(NotATraceError, match="none of its traces can be read"):
        chosen_trace(tmp_path)


@pytest.mark.parametrize(
    ("closed", "ago", "expected"),
    [
        (True, 5.0, "ended in order"),
        (False, 5.0, "perhaps still running, last commit 5 seconds ago"),
        (False, 119.0, "perhaps still running, last commit 1 minute ago"),
        (False, 7_300.0, "not ended in order, last commit 2 hours ago"),
    ],
)
def test_a_trace_that_is_not_closed_is_running_or_was_killed_by_its_last_commit(
    folder: Path, closed: bool, ago: float, expected: str
) -> None:
    entry = TraceEntry(folder / "a.kvtrace", traces_in(folder)[0].record, 4, NOON, closed)
    assert state_of(entry, NOON + ago) == expected


def test_the_list_fits_a_terminal(folder: Path) -> None:
    text = folder_text(traces_in(folder), NOON)
    assert max(map(len, text.splitlines()[:-1])) <= 80
    assert text.splitlines()[1] == "2023-11-14 22:14          7  auto      b.kvtrace"


def test_ls_gives_programs_the_same(folder: Path) -> None:
    listed = json.loads(kvtrace("ls", folder, "--json").stdout)
    assert [one["num_rows"] for one in listed] == [7, 4, 4, None]
    assert listed[0]["created_at"] == NOON + 60


@pytest.mark.parametrize("command", [("inspect",), ("report",), ("replay", "-o", "run")])
def test_commands_take_a_folder_and_tell_which_trace_it_is(
    folder: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = kvtrace(*command, folder)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("b.kvtrace is taken, the latest of 3 traces") == 1


def test_a_folder_without_a_trace_is_one_line(tmp_path: Path) -> None:
    result = kvtrace("ls", tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "holds no trace" in result.stderr
