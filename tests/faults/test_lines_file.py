"""Files of lines and their commits: what a reader believes after a fault."""

from __future__ import annotations

import resource
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from kvtrace_capture.journal import Journal
from kvtrace_capture.lines_file import LinesFile, write_lines
from support.fabricate import request

from kvtrace.trace.format import seal
from kvtrace.trace.requests import read_lines_commit, read_requests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = [seal(request(number, prompt_tokens=4)) for number in range(3)]


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: a write takes what fits, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_line_that_no_commit_covers_does_not_exist(tmp_path: Path) -> None:
    file = LinesFile(tmp_path / "requests.jsonl")
    file.append(LINES[0])
    file.commit()
    file.append(LINES[1])
    assert set(read_requests(tmp_path, committed=True)) == {0}
    file.commit()
    assert set(read_requests(tmp_path, committed=True)) == {0, 1}
    file.close()


def test_half_a_line_on_a_full_disk_is_taken_back_and_spoils_no_later_one(tmp_path: Path) -> None:
    file = LinesFile(tmp_path / "requests.jsonl")
    file.append(LINES[0])
    with full_disk(len(LINES[0]) + 40), pytest.raises(OSError, match="File too large"):
        file.append(LINES[1])
    assert (tmp_path / "requests.jsonl").read_text() == LINES[0] + "\n"
    file.append(LINES[2])
    file.commit()
    assert set(read_requests(tmp_path, committed=True)) == {0, 2}
    file.close()


def test_a_journal_says_in_its_commit_how_many_lines_a_full_disk_cost(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "requests.jsonl")
    with full_disk(2 * len(LINES[0]) + 40):
        for line in LINES:
            journal.append(line)
        journal.close()
    assert journal.lost == 1
    assert set(read_requests(tmp_path, committed=True)) == {0, 1}
    commit = read_lines_commit(tmp_path / "requests.jsonl")
    assert commit is not None
    assert (commit.num_lines, commit.num_lost) == (2, 1)


def test_lines_that_are_replaced_as_a_whole_are_covered_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "requests.jsonl", LINES[:1])
    write_lines(tmp_path / "requests.jsonl", LINES)
    assert set(read_requests(tmp_path, committed=True)) == {0, 1, 2}
