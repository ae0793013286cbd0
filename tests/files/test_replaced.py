"""One file, replaced whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kvtrace.files.replaced import replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_takes_the_place_of_another_and_has_its_mode_less_the_umask(
    tmp_path: Path,
) -> None:
    path, before = tmp_path / "file", os.umask(0o027)
    try:
        replace_file(path, "ältere")
        assert path.read_bytes() == "ältere".encode()
        assert path.stat().st_mode & 0o777 == 0o640
        replace_file(path, b"new", mode=0o600)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError):
        replace_file(path, 7)  # type: ignore[arg-type]
    assert path.read_text() == "old"
