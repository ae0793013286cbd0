"""Real writer processes under a fault: some of what `make faults` does, pinned and quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults import disk
from faults.kills import kill_writers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("fault", [disk.directory_removed, disk.clock_jumps, disk.writer_dies])
def test_the_feeding_process_goes_on_and_every_row_is_stored_or_counted_after(tmp_path: Path, fault) -> None:
    assert fault(tmp_path)


def test_after_kill_9_at_a_random_moment_every_committed_row_of_a_real_trace_is_there(tmp_path: Path) -> None:
    kills = list(kill_writers(tmp_path, seed=7, num_kills=3))
    assert [kill.problem for kill in kills] == [""] * 3
    assert all(kill.num_stored >= kill.num_acknowledged for kill in kills)
    assert any(kill.num_stored for kill in kills)
