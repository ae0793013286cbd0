from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

import pytest
from kvtrace_capture.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_are_written_in_order_for_the_owner_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "lines")
    for number in range(1000):
        journal.append(str(number))
    journal.close()
    assert (tmp_path / "lines").read_text().splitlines() == [str(number) for number in range(1000)]
    assert stat.S_IMODE((tmp_path / "lines").stat().st_mode) == 0o600
    assert journal.lost == 0


def test_an_existing_file_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("mine\n")
    with pytest.raises(FileExistsError):
        Journal(tmp_path / "lines")
    assert (tmp_path / "lines").read_text() == "mine\n"


def test_a_full_disk_is_logged_once_and_lost_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "lines")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file._descriptor)
    os.close(full)
    with caplog.at_level(logging.ERROR):
        journal.append("a")
        journal.append("b")
        journal.close()
    assert journal.lost == 2
    assert len([record for record in caplog.records if "are lost" in record.message]) == 1
