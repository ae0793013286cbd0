"""A profile that several processes make, use and replace at once, or that cannot be kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

from kvtrace.candidates import Bf16, OnlineScales
from kvtrace.errors import InputError, IntegrityError
from kvtrace.evaluation import ReplayRequest, replay
from kvtrace.profile import ready
from kvtrace.profile.build import profile_tensors
from kvtrace.profile.ready import ready_profile
from kvtrace.profile.store import fill_profile, put_profile
from kvtrace.runs.record import RunRecord
from kvtrace.trace.cells import find_cells
from kvtrace.trace.format import unseal
from kvtrace.trace.reader import open_trace
from kvtrace.trace.staging import staged

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace

CPU = "cpu"


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    random = np.random.default_rng(0)
    path = fabricate_trace(
        tmp_path / "small.kvtrace",
        {(layer, t): random.normal(0, 3, (40, 2, 8)) for layer in range(2) for t in "kv"},
        request_of_row=[0] * 40,
        position_of_row=range(40),
        requests=[request(0, prompt_tokens=30, output_tokens=10)],
    )
    return open_trace(path)


def without_tensors(trace: Trace) -> Trace:
    for chunks in trace.path.glob("rank-0.zarr/layers/*/*/c"):
        shutil.rmtree(chunks)
    return open_trace(trace.path)


def were_reread(run: Path) -> bool:
    return unseal((run / "run.json").read_bytes(), RunRecord).sources[0].tensors_reread


@pytest.mark.parametrize("before", ["none", "outdated"])
def test_of_two_profiles_made_at_once_the_first_is_used_by_both(trace: Trace, before: str) -> None:
    path, cells = trace.path / "profile", find_cells(trace)
    if before == "outdated":
        (path / "layers").mkdir(parents=True)
        (path / "profile.json").write_text("{}")
    with ExitStack() as stack:
        made = [
            fill_profile(trace, cells, profile_tensors(trace, cells, CPU), stack.enter_context(staged(path)))
            for _ in range(2)
        ]
        first = put_profile(made[0], trace, cells, path)
        inode = (path / "profile.json").stat().st_ino
        second = put_profile(made[1], trace, cells, path)
        assert (path / "profile.json").stat().st_ino == inode
    for one in (first, second):
        assert one.path == path
        assert len(list(one.tensors())) == 4
    assert not [p.name for p in trace.path.iterdir() if p.name.startswith(".profile")]


def test_first_replays_of_one_trace_at_the_same_time_give_the_same_run(trace: Trace, tmp_path: Path) -> None:
    runs = [tmp_path / f"run{number}" for number in range(3)]
    processes = [
        subprocess.Popen([sys.executable, "-m", "kvtrace", "replay", str(trace.path), "-o", str(run)])
        for run in runs
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len({(run / "cells.parquet").read_bytes() for run in runs}) == 1


def test_a_profile_that_cannot_take_its_place_serves_the_command_and_goes(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ready, "put_profile", refuse)
    names = {path.name for path in trace.path.iterdir()}
    with ready_profile(trace, find_cells(trace), CPU) as found:
        assert found.were_read
        assert len(list(found.profile.tensors())) == 4
    assert found.note == (
        f"its counts are not kept: {trace.path / 'profile'} cannot be replaced (Permission denied)"
    )
    assert {path.name for path in trace.path.iterdir()} == names


def test_no_room_for_the_counts_is_an_error_that_says_so(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ready, "fill_profile", full)
    expected = "cannot write its counts: No space left on device"
    with pytest.raises(InputError, match=expected), ready_profile(trace, find_cells(trace), CPU):
        pass
    assert not [p.name for p in trace.path.iterdir() if "profile" in p.name]


def test_a_copied_trace_says_that_its_tensors_were_reread_once(trace: Trace, tmp_path: Path) -> None:
    replay(ReplayRequest([trace], [Bf16()]), tmp_path / "first")
    copy = shutil.copytree(trace.path, tmp_path / "copy.kvtrace", copy_function=shutil.copy)
    num_files = len(list(copy.glob("rank-0.zarr/layers/*/*/c/*/0/0")))
    second = kvtrace("replay", copy, "-o", tmp_path / "second")
    assert second.stderr.splitlines() == [
        f"copy: its profile was used; {num_files} tensor files had other times, were reread and are the same"
    ]
    assert were_reread(tmp_path / "second")
    third = kvtrace("replay", copy, "-o", tmp_path / "third")
    assert "tensors were not reread" in third.stderr
    assert not were_reread(tmp_path / "third")


def test_the_first_pass_of_an_online_policy_counts_as_reading_the_tensors(
    trace: Trace, tmp_path: Path
) -> None:
    replay(ReplayRequest([trace], [Bf16()]), tmp_path / "first")
    candidates = [Bf16(), OnlineScales("fp8-per-token-head")]
    assert were_reread(replay(ReplayRequest([trace], candidates), tmp_path / "second"))
    assert not were_reread(replay(ReplayRequest([trace], candidates), tmp_path / "third"))


def test_nothing_advises_to_delete_the_only_counts_of_removed_tensors(trace: Trace, tmp_path: Path) -> None:
    replay(ReplayRequest([trace], [Bf16()]), tmp_path / "first")
    array = trace.path / "profile/layers/01/k/count/c/0"
    array.write_bytes(array.read_bytes()[:-5])
    with pytest.raises(IntegrityError, match=r"Delete .*: the profile is made again"):
        replay(ReplayRequest([trace], [Bf16()]), tmp_path / "second")
    with pytest.raises(
        IntegrityError, match="the trace has no tensors any more, and without it they are lost"
    ):
        replay(ReplayRequest([without_tensors(trace)], [Bf16()]), tmp_path / "second")


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("--direct", "replaying them element by element"),
        ("--verify", "replaying them element by element"),
        ("--intervals", "a profile of them"),
        ("--online=int8-per-token-head", "the first replay of int8-per-token-head"),
    ],
)
def test_what_needs_removed_tensors_is_named(trace: Trace, tmp_path: Path, option: str, what: str) -> None:
    replay(ReplayRequest([trace], [Bf16()]), tmp_path / "first")
    without_tensors(trace)
    result = kvtrace("replay", trace.path, option, "-o", tmp_path / "second")
    assert (result.returncode, result.stdout) == (2, "")
    assert f"its tensors are not there any more, and {what} needs them" in result.stderr
    assert not (tmp_path / "second").exists()
