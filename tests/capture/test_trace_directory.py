from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest
from kvtrace_capture.trace_directory import find_trace_directory, make_trace_directory, start_id

if TYPE_CHECKING:
    from pathlib import Path


def test_every_start_and_every_replica_has_an_id_of_its_own() -> None:
    ids = {start_id("engine", "a1b2c", 0), start_id("engine", "a1b2d", 0), start_id("engine", "a1b2c", 1)}
    assert len(ids) == 3
    assert start_id("engine", "a1b2c", 0) in ids


def test_the_directory_is_new_and_its_owners_alone(tmp_path: Path) -> None:
    path = make_trace_directory(tmp_path / "new" / "base", "abc")
    assert path.name.endswith("Z-abc.kvtrace")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_another_process_waits_for_the_directory_of_its_start(tmp_path: Path) -> None:
    make_trace_directory(tmp_path, "other")
    later = threading.Timer(0.2, make_trace_directory, (tmp_path, "mine"))
    later.start()
    assert find_trace_directory(tmp_path, "mine").name.endswith("-mine.kvtrace")
    later.join()


def test_a_directory_that_never_appears_is_an_error_that_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"no directory \*-mine.kvtrace .* must see the same folder"):
        find_trace_directory(tmp_path, "mine", patience_s=0.1)


def test_a_link_and_another_users_directory_are_passed_over(tmp_path: Path) -> None:
    mine = make_trace_directory(tmp_path, "mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "99991231T000000Z-mine.kvtrace").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "99991231T000001Z-mine.kvtrace").write_text("")
    assert find_trace_directory(tmp_path, "mine") == mine
    if os.geteuid() == 0:
        (tmp_path / "99991231T000002Z-mine.kvtrace").mkdir()
        os.chown(tmp_path / "99991231T000002Z-mine.kvtrace", 12345, 12345)
        assert find_trace_directory(tmp_path, "mine") == mine
