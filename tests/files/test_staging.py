"""Directories that appear when they are complete, and what becomes of those of killed processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvtrace.files import staging
from kvtrace.files.staging import put, remove_leftovers, staged

OLD = time.time() - 3600


def filled(directory: Path, text: str) -> Path:
    directory.mkdir(parents=True)
    (directory / "file").write_text(text)
    return directory


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_not_put_is_gone_after_the_block(tmp_path: Path) -> None:
    def interrupted() -> None:
        with staged(tmp_path / "out") as directory:
            (directory / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == set()


def test_a_directory_takes_the_place_of_another_and_follows_the_umask(tmp_path: Path) -> None:
    filled(tmp_path / "out", "old")
    before = os.umask(0o027)
    try:
        with staged(tmp_path / "out") as directory:
            (directory / "file").write_text("new")
            put(directory, tmp_path / "out")
    finally:
        os.umask(before)
    assert (tmp_path / "out/file").read_text() == "new"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("kind", ["dangling link", "link to a directory", "file"])
def test_what_is_no_directory_is_replaced_and_what_a_link_points_to_stays(tmp_path: Path, kind: str) -> None:
    out, elsewhere = tmp_path / "out", filled(tmp_path / "elsewhere", "kept")
    if kind == "file":
        out.write_text("old")
    else:
        out.symlink_to(elsewhere if kind == "link to a directory" else tmp_path / "nowhere")
    put(filled(tmp_path / ".out.partial-x", "new"), out)
    assert (out / "file").read_text() == "new"
    assert (elsewhere / "file").read_text() == "kept"
    assert names(tmp_path) == {"out", "elsewhere"}


def test_what_was_there_is_there_again_where_it_cannot_be_replaced(tmp_path: Path) -> None:
    out = filled(tmp_path / "out", "old")
    with pytest.raises(OSError, match="No such file"):
        put(tmp_path / ".out.partial-gone", out)
    assert (out / "file").read_text() == "old"
    assert names(tmp_path) == {"out"}


def test_leftovers_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from kvtrace.files.staging import staged\n"
        "with staged(pathlib.Path(sys.argv[1])) as directory:\n"
        "    print(directory, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        ]
        for process in processes:
            stack.callback(process.kill)
        living, killed = (Path(str(one.stdout and one.stdout.readline().strip())) for one in processes)
        processes[1].kill()
        processes[1].wait()
        assert names(tmp_path) == {living.name, killed.name}
        for path in (living, killed):
            os.utime(path, (OLD, OLD))
        remove_leftovers(tmp_path / "out")
        assert names(tmp_path) == {living.name}


def test_a_directory_that_was_just_made_is_let_be_as_its_lock_may_follow(tmp_path: Path) -> None:
    filled(tmp_path / ".out.partial-young", "")
    old = filled(tmp_path / ".out.replaced-old", "")
    os.utime(old, (OLD, OLD))
    filled(tmp_path / ".other.partial-old", "")
    os.utime(tmp_path / ".other.partial-old", (OLD, OLD))
    remove_leftovers(tmp_path / "out")
    assert names(tmp_path) == {".out.partial-young", ".other.partial-old"}


def test_without_locks_nothing_is_removed_and_all_else_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "fcntl", None)
    left = filled(tmp_path / ".out.partial-old", "")
    os.utime(left, (OLD, OLD))
    with staged(tmp_path / "out") as directory:
        put(directory, tmp_path / "out")
    assert names(tmp_path) == {"out", left.name}
