"""To add a column to a run: what it means, and where it is written; its view shows it by itself."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np
from support.fabricate import fabricate_trace, request
from support.recipe import TreeCopy

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "kvtrace/runs/traffic_tables.py"
TABLES = "kvtrace/evaluation/tables.py"


def test_a_column_takes_two_files(tmp_path: Path) -> None:
    tree = TreeCopy(tmp_path / "tree")
    status = '        Column("status", "string", "the engine\'s finish reason, or running"),\n'
    tree.edit(SCHEMA, status, status + '        Column("preemptions", "int32", "times", since=2),\n')
    tree.edit(TABLES, '"computed_tokens", "status")', '"computed_tokens", "status", "preemptions")')
    assert len(tree.touched()) == 2

    trace = fabricate_trace(
        tmp_path / "day.kvtrace",
        {(0, t): np.ones((6, 1, 3), np.float32) for t in "kv"},
        requests=[
            request(number, prompt_tokens=3).model_copy(update={"preemptions": 2 * number})
            for number in range(2)
        ],
        request_of_row=[0] * 3 + [1] * 3,
        position_of_row=[0, 1, 2] * 2,
    )
    run = tmp_path / "run"
    made = tree.run("-m", "kvtrace", "replay", trace, "-o", run)
    assert made.returncode == 0, made.stderr
    sql = "SELECT request, preemptions FROM requests ORDER BY request"
    done = tree.run("-m", "kvtrace", "query", run, "--sql", sql, "--format", "csv")
    assert done.returncode == 0, done.stderr
    assert list(csv.reader(io.StringIO(done.stdout))) == [["request", "preemptions"], ["0", "0"], ["1", "2"]]
