"""Requests of which not all that was sampled is there, as a run and its report count them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
from support.fabricate import fabricate_trace, request
from support.run_cli import kvtrace

if TYPE_CHECKING:
    from pathlib import Path


def replayed(tmp_path: Path, requests: list, rows: list[tuple[int, int]], **options: object) -> Path:
    values = np.random.default_rng(0).normal(size=(len(rows), 2, 4))
    trace = fabricate_trace(
        tmp_path / "t.kvtrace",
        {(0, "k"): values, (0, "v"): values},
        request_of_row=[number for number, _ in rows],
        position_of_row=[position for _, position in rows],
        requests=requests,
        **options,
    )
    run = tmp_path / "r.run"
    done = kvtrace("replay", trace, "-o", run)
    assert done.returncode == 0, done.stderr
    return run


def found(run: Path, sql: str) -> list[list[object]]:
    result = kvtrace("query", run, "--sql", sql, "--format", "json")
    assert result.returncode == 0, result.stderr
    return [list(row.values()) for row in json.loads(result.stdout)]


def test_rows_that_a_killed_engine_had_not_committed_count_as_lost(tmp_path: Path) -> None:
    ends = [request(number, prompt_tokens=8, output_tokens=2) for number in range(3)]
    rows = [(0, p) for p in range(10)] + [(1, p) for p in range(7)]  # of request 2 nothing was committed
    run = replayed(tmp_path, ends, rows)
    lost = found(run, "SELECT request, num_rows, num_dropped, incomplete FROM requests ORDER BY request")
    assert lost == [[0, 10, 0, False], [1, 7, 3, True], [2, 0, 10, True]]
    (captured,) = json.loads(kvtrace("report", run, "--format", "json").stdout)["captured"]
    assert (captured["num_dropped"], captured["num_incomplete_requests"]) == (13, 2)


def test_a_request_whose_end_was_not_seen_is_not_captured_in_full(tmp_path: Path) -> None:
    requests = [request(0, prompt_tokens=5), request(1, prompt_tokens=5, status="running")]
    run = replayed(tmp_path, requests, [(number, p) for number in (0, 1) for p in range(5)])
    assert found(run, "SELECT request, incomplete FROM requests ORDER BY ALL") == [[0, False], [1, True]]


def test_a_capture_is_not_counted_twice_whatever_its_copy_is_called(tmp_path: Path) -> None:
    replayed(tmp_path, [request(0, prompt_tokens=5)], [(0, p) for p in range(5)])
    shutil.copytree(tmp_path / "t.kvtrace", tmp_path / "copy.kvtrace")
    both = tmp_path / "t.kvtrace", tmp_path / "copy.kvtrace"
    for refused in (
        kvtrace("replay", *both, "-o", tmp_path / "two.run"),
        kvtrace("report", *both),
        kvtrace("calibrate", *both, "-o", tmp_path / "scales"),
    ):
        assert refused.returncode == 2
        assert f"copy.kvtrace: is of the same capture as {both[0]}" in refused.stderr
    assert not (tmp_path / "two.run").exists()


def test_rows_whose_requests_have_no_record_are_left_out_aloud(tmp_path: Path) -> None:
    rows = [(0, p) for p in range(5)] + [(1, p) for p in range(3)]
    replayed(tmp_path, [request(0, prompt_tokens=5)], rows)
    for command in (("report",), ("replay", "-o", tmp_path / "again.run")):
        told = kvtrace(command[0], tmp_path / "t.kvtrace", *command[1:])
        assert "t.kvtrace: 3 of 8 rows are left out: their requests have no record" in told.stderr
