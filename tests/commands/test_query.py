"""`kvtrace query` beside the asking: where the queries lie, and the text of one."""

from __future__ import annotations

from pathlib import Path

from support.run_cli import kvtrace

from kvtrace.query import find_query


def test_the_sql_of_a_query_is_printed_as_it_is() -> None:
    shown = kvtrace("query", "--show", "rank_heads")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == find_query("rank_heads").path.read_text(encoding="utf-8")


def test_a_query_that_is_none_is_named_with_those_there_are() -> None:
    shown = kvtrace("query", "--show", "rank_head")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "rank_heads" in shown.stderr


def test_the_folder_of_the_queries_is_printed_for_the_duckdb_shell() -> None:
    folder = Path(kvtrace("query", "--path").stdout.removesuffix("\n"))
    assert (folder / "views.sql").is_file()
    assert (folder / "rank_heads.sql").is_file()
