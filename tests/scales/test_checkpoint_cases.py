"""Cases after public reports: each gets its right answer. `make checkpoint-cases` prints them as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checkpoint_cases.all_cases import CASES

if TYPE_CHECKING:
    from pathlib import Path

    from checkpoint_cases.case import Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_reported_checkpoint_gets_its_right_answer(case: Case, tmp_path: Path) -> None:
    answer = case.ask(tmp_path / "in")
    assert {key: answer.get(key) for key in case.right} == case.right
