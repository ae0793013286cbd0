"""`import kvtrace` is what a notebook needs; what it returns is tested by the examples in kvtrace/api.py."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.fabricate import fabricate_trace, request

import kvtrace
import kvtrace.api
from kvtrace.calibration.save import save_scales
from kvtrace.errors import InputError, NoValidCandidateError

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.trace.reader import Trace


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """A trace, and a folder of its own for what is temporary."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    path = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(0, tensor): np.ones((4, 1, 8)) for tensor in "kv"},
        request_of_row=[0] * 4,
        position_of_row=range(4),
        requests=[request(0, prompt_tokens=4)],
    )
    return kvtrace.open_trace(path)


def test_a_replay_that_fails_leaves_no_temporary_folder(trace: Trace, tmp_path: Path) -> None:
    save_scales(tmp_path / "huge", {(0, t): (3e38,) for t in "kv"})
    with pytest.raises(NoValidCandidateError):
        kvtrace.replay(trace, [tmp_path / "huge"], device="cpu")
    assert list((tmp_path / "scratch").iterdir()) == []
    kept = kvtrace.replay(trace, device="cpu")
    (folder,) = (tmp_path / "scratch").iterdir()
    assert kept.path.is_relative_to(folder)
    del kept
    assert not folder.exists()


def test_a_replay_of_nothing_says_that_a_trace_is_missing() -> None:
    with pytest.raises(InputError, match="no trace was given"):
        kvtrace.replay([])


def test_one_path_of_scales_is_one_artifact(trace: Trace, tmp_path: Path) -> None:
    save_scales(tmp_path / "half", {(0, t): (0.5,) for t in "kv"})
    for scales in (tmp_path / "half", str(tmp_path / "half"), [tmp_path / "half"]):
        run = kvtrace.replay(trace, scales, device="cpu")
        names = run.sql("SELECT candidate FROM candidates ORDER BY ordinal")["candidate"].to_list()
        assert names == ["bf16", "unit", "half"]


@pytest.mark.parametrize("name", ["open_trace", "open_run", "replay"])
def test_the_notebook_functions_are_attributes_of_the_package(name: str) -> None:
    assert getattr(kvtrace, name) is getattr(kvtrace.api, name)
    assert name in dir(kvtrace)


def test_replay_stays_the_function_whatever_was_imported_before() -> None:
    code = (
        "import kvtrace.cli, kvtrace.commands.replay, kvtrace.evaluation, kvtrace.evaluation.replay\n"
        "import kvtrace, kvtrace.api\n"
        "assert kvtrace.replay is kvtrace.api.replay"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys\nimport kvtrace\nprint(*(n for n in sys.modules if n.startswith('kvtrace')))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(loaded.stdout.split()) == {"kvtrace", "kvtrace.version"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kvtrace' has no attribute 'replays'"):
        kvtrace.replays  # noqa: B018
