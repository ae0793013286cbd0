"""Sums that no replay writes: nothing is judged by them, though their checksums are right."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.fabricate_run import fabricate_run, read_tables
from support.run_cli import kvtrace

INPUT = Path(__file__).parents[1] / "queries/input"
POLICY = """
schema_version = "1.0"
name = "service"
date = 2026-01-01
[limits]
vectors_clipped_frac = 0.01
[coverage]
requests = 1
tokens = 1
[[segments]]
name = "all"
"""


@pytest.mark.parametrize(
    "wrong",
    [
        {"sum_sq_error": math.nan},
        {"sum_sq_signal": math.inf},
        {"sum_sq_error": -1.0},
        {"num_flushed": -1},
        {"num_clipped": 10**9},
        {"num_clipped": 0, "sum_sq_clip_error": 1.0},
        {"sum_sq_clip_error": 1e9},
    ],
    ids=str,
)
def test_sums_that_cannot_be_are_one_line(wrong: dict[str, float], tmp_path: Path) -> None:
    tables = read_tables(INPUT)
    next(row for row in tables["cells"] if row["candidate"] == "shipped").update(wrong)
    ended = kvtrace("compare", fabricate_run(tmp_path / "broken.run", tables))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "broken.run/cells.parquet: not the cells table of a run: sums of shipped are" in ended.stderr


def test_every_command_that_says_a_verdict_looks_at_its_sums(tmp_path: Path) -> None:
    tables = read_tables(INPUT)
    (tmp_path / "policy.toml").write_text(POLICY)
    asked: tuple[tuple[object, ...], ...] = (
        ("report",),
        ("compare",),
        ("check", "--policy", tmp_path / "policy.toml", "--candidate", "shipped"),
    )
    sound = fabricate_run(tmp_path / "sound.run", tables)
    tables["cells"][0]["sum_sq_error"] = math.nan
    broken = fabricate_run(tmp_path / "broken.run", tables)
    for command, *options in asked:
        assert "not the cells table" not in kvtrace(command, sound, *options).stderr
        assert "not the cells table" in kvtrace(command, broken, *options).stderr
