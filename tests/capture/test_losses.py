"""Counts of lost rows while the disk takes nothing: bounded, and never lost themselves without a word."""

from __future__ import annotations

import pytest
from kvtrace_capture import losses
from kvtrace_capture.losses import Losses

from kvtrace.trace.format import DroppedRecord


def lost(request: int, num_rows: int, reason: str = "queue_full") -> DroppedRecord:
    return DroppedRecord.model_validate({"request": request, "num_rows": num_rows, "reason": reason})


def test_rows_of_one_request_and_reason_become_one_line() -> None:
    found, lines = Losses(), []
    for one in (lost(3, 2), lost(4, 1), lost(3, 5), lost(3, 7, "budget")):
        found.add(one)
    assert found.num_rows == 15
    found.write(lines.append, lambda: None)
    assert lines == [lost(3, 7), lost(4, 1), lost(3, 7, "budget")]
    assert not found
    assert found.num_rows == 0


def test_beyond_its_bound_rows_are_counted_without_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_UNWRITTEN_LOSSES", 2)
    found, lines = Losses(), []
    for one in (lost(0, 1), lost(1, 1), lost(2, 10), lost(0, 3)):
        found.add(one)
    found.write(lines.append, lambda: None)
    assert lines == [lost(0, 4), lost(1, 1)]
    assert found.num_rows == 10


def test_what_a_disk_does_not_take_is_written_once_and_whole_later() -> None:
    found, lines = Losses(), []

    def full(_: DroppedRecord) -> None:
        raise OSError("no space left")

    def cannot_commit() -> None:
        raise OSError("no space left")

    found.add(lost(0, 2))
    found.add(lost(1, 3))
    with pytest.raises(OSError, match="no space"):
        found.write(full, lambda: None)
    assert found.num_rows == 5
    with pytest.raises(OSError, match="no space"):
        found.write(lines.append, cannot_commit)
    assert found.num_rows == 5  # written, but no reader believes it yet
    found.write(lines.append, lambda: None)
    assert sorted(lines, key=lambda line: line.request) == [lost(0, 2), lost(1, 3)]
    assert found.num_rows == 0
