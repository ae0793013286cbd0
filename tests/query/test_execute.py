"""Queries and a user's SQL on a run: parameters, refusals, formats."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from support.fabricate_run import fabricate_run, read_tables
from typer.testing import CliRunner

from kvtrace.commands.query import query as query_command
from kvtrace.errors import InputError, OutputExistsError, QueryError
from kvtrace.query import Result, connect_with_views, find_query, run_query, run_sql
from kvtrace.query.output import as_csv, as_json, as_table
from kvtrace.runs.open import Run, open_run

SMALL = Path(__file__).parents[1] / "queries" / "input"
HOSTILE_NAMES = (
    "'; COPY (SELECT 1) TO 'stolen.csv'; --",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m\x07",
    "\u202egnp.exe",
    "[bold red]x[/]",
    "x" * 10_000,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(fabricate_run(tmp_path / "small.run", read_tables(SMALL)))


def sql(run: Run, text: str, **parameters: str) -> Result:
    return run_sql(connect_with_views(run), text, parameters)


def digest(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_sql_sees_every_view(run: Run) -> None:
    for view, rows in {
        "cells": 36,
        "vectors": 20,
        "rows": 5,
        "requests": 3,
        "scales": 12,
        "candidates": 4,
    }.items():
        assert sql(run, f"SELECT count(*) FROM {view}").rows == [(rows,)]


def test_a_rule_that_captures_nothing_has_no_weight(tmp_path: Path) -> None:
    tables = read_tables(SMALL)
    tables["sampling"].append(
        {"source": "day", "sampling_id": 2, "position_stride": 16, "request_fraction": 0.0}
    )
    run = open_run(fabricate_run(tmp_path / "off.run", tables))
    assert sql(run, "SELECT weight FROM sampling ORDER BY sampling_id").rows == [(1.0,), (3.0,), (None,)]


def test_requests_that_lost_rows_are_incomplete_and_stand_for_what_was_captured(run: Run) -> None:
    rows = sql(run, "SELECT request, incomplete, sum(weight) FROM tokens GROUP BY ALL ORDER BY ALL").rows
    assert rows == [(0, False, 4.0), (1, True, 3.0)]


def test_sql_takes_parameters_as_variables(run: Run) -> None:
    text = "SELECT getvariable('a')::INTEGER + 1 AS x, getvariable('b') AS y"
    assert sql(run, text, a="41", b="it's").rows == [(42, "it's")]


def test_a_parameter_of_one_query_does_not_reach_the_next(run: Run) -> None:
    connection = connect_with_views(run)
    rank = find_query("rank_heads")
    assert len(run_query(connection, rank, {"top": "1", "tensor": "k"}).rows) == 2
    assert len(run_query(connection, rank).rows) == 8


@pytest.mark.parametrize(
    "text",
    [
        "SELECT max(num_values) FROM cells",
        "WITH a AS (SELECT 1 AS x) SELECT x FROM a UNION ALL SELECT 2",
        "FROM cells SELECT candidate, count(*) GROUP BY ALL",
        "SELECT unnest([1, 2]), i FROM range(3) AS r(i)",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT sum(n) FROM t",
        "SELECT fraction_high(request_sums(0.0, 1.0)) FROM range(9)",
        "SUMMARIZE cells",
        "VALUES (1), (2)",
    ],
)
def test_any_select_over_the_run_is_run(run: Run, text: str) -> None:
    assert sql(run, text).rows


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO 'x.csv'",
        "COPY (SELECT 1) TO '{run}/cells.parquet' (USE_TMP_FILE false)",
        "SELECT 1; COPY (SELECT 1) TO '{run}/cells.parquet' (USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{run}/cells.parquet' (USE_TMP_FILE false)",
        "CREATE TABLE t AS SELECT 1",
        "CREATE OR REPLACE VIEW cells AS SELECT 1",
        "DROP VIEW cells",
        "WITH x AS (INSERT INTO cells VALUES (1) RETURNING 1) SELECT * FROM x",
        "INSERT INTO cells VALUES (1)",
        "SET threads = 1",
        "SET VARIABLE top = 3",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "ATTACH '{run}/x.db'",
        "EXPORT DATABASE '{run}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PREPARE p AS SELECT 1",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('{run}/../x.csv')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM enable_logging(storage='file', storage_path='{run}/log')",
        "SELECT * FROM enable_profiling(save_location='{run}/profile.json')",
        "SELECT * FROM (SELECT * FROM read_blob('{run}/run.json'))",
        "SELECT (SELECT content FROM read_text('/etc/hostname'))",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'http://localhost/x.parquet'",
        "",
        "SELECT FROM WHERE",
        "SELECT no_such_column FROM cells",
    ],
)
def test_sql_that_is_no_plain_select_over_the_run_is_refused_and_changes_nothing(
    run: Run, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = digest(tmp_path)
    with pytest.raises(QueryError):
        sql(run, text.replace("{run}", str(run.path)))
    assert digest(tmp_path) == before


def test_sql_does_not_see_the_variables_of_python(run: Run) -> None:
    secret = pq.read_table(run.path / "cells.parquet")
    with pytest.raises(QueryError, match="secret"):
        sql(run, "SELECT * FROM secret")
    assert len(secret) == 36


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_workload_names_are_only_text(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = read_tables(SMALL)
    for table in ("requests", "cells"):
        for row in tables[table]:
            row["workload"] = {"chat": name}.get(row["workload"], row["workload"])
    run = open_run(fabricate_run(tmp_path / "hostile.run", tables))
    before = digest(tmp_path)
    query = find_query("by_workload")
    result = run_query(connect_with_views(run), query, {"workload": name, "candidate": "shipped"})
    assert [row[2] for row in result.rows] == [name, name]
    shown, _ = as_table(result)
    assert all(ord(char) >= 32 or char == "\n" for char in shown)
    assert "\u202e" not in shown
    assert max(map(len, shown.splitlines())) < 1000
    assert json.loads(as_json(result))[0]["workload"] == name
    assert next(csv.DictReader(io.StringIO(as_csv(result), newline="")))["workload"] == name
    assert digest(tmp_path) == before


def test_an_unknown_query_or_parameter_is_answered_with_those_there_are(run: Run) -> None:
    with pytest.raises(QueryError, match=r"'nope'; there are .*by_position, .*rank_heads"):
        find_query("nope")
    with pytest.raises(
        QueryError, match=r"rank_heads has no parameter 'layer'; it takes candidate, intervals, source, ten"
    ):
        run_query(connect_with_views(run), find_query("rank_heads"), {"layer": "1"})
    with pytest.raises(QueryError, match="the SQL has no parameter 'a'; it takes no parameter"):
        sql(run, "SELECT 1", a="1")


def test_a_parameter_of_the_wrong_type_is_refused(run: Run) -> None:
    with pytest.raises(QueryError, match="many"):
        run_query(connect_with_views(run), find_query("rank_heads"), {"top": "many"})


def test_a_table_is_aligned_and_leaves_out_what_does_not_fit() -> None:
    result = Result(("name", "share", "absent"), [("a", 0.123456, None), ("long name", 12.0, None)])
    assert as_table(result)[0].splitlines() == [
        "name        share  absent",
        "─────────  ──────  ──────",
        "a          0.1235  NULL",
        "long name      12  NULL",
    ]
    shown, left_out = as_table(result, width=20)
    assert shown.splitlines()[0] == "name        share"
    assert left_out == ("absent",)


def test_a_table_breaks_long_column_names_rather_than_widen_the_column() -> None:
    result = Result(("kv_head", "out_of_range_frac"), [(1, 0.25)])
    assert as_table(result)[0].splitlines() == [
        "        out_",
        "         of_",
        " kv_  range_",
        "head    frac",
        "────  ──────",
        "   1    0.25",
    ]


def test_json_has_no_nan_and_csv_leaves_null_empty() -> None:
    result = Result(("x", "y"), [(float("nan"), None), (0.1, [1, float("inf")])])
    assert json.loads(as_json(result)) == [{"x": None, "y": None}, {"x": 0.1, "y": [1, None]}]
    assert as_csv(Result(("x", "y", "z"), [(0.1, None, True)])) == "x,y,z\n0.1,,true\n"


def invoke(*arguments: str | Path) -> str:
    app = typer.Typer()
    app.command()(query_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command_runs_a_query_by_name_in_every_format(run: Run, tmp_path: Path) -> None:
    arguments = (run.path, "rank_heads", "--param", "top=1", "--param", "candidate=shipped")
    assert "shipped" in invoke(*arguments)
    rows = list(csv.DictReader(io.StringIO(invoke(*arguments, "--format", "csv"))))
    assert [row["num_out_of_range"] for row in rows] == ["6", "0"]
    assert [row["num_out_of_range"] for row in json.loads(invoke(*arguments, "--json"))] == [6, 0]
    assert invoke(*arguments, "--format", "parquet", "-o", tmp_path / "out.parquet") == ""
    assert pq.read_table(tmp_path / "out.parquet").column("num_out_of_range").to_pylist() == [6, 0]


def test_the_command_runs_sql_lists_queries_and_limits_rows(run: Run) -> None:
    assert invoke(run.path, "--sql", "SELECT count(*) AS n FROM cells", "--format", "csv") == "n\n36\n"
    assert (
        json.loads(invoke(run.path, "--sql", "FROM rows ORDER BY ALL", "--json", "--limit", "2"))[1]["row"]
        == 1
    )
    listed = invoke("--list")
    assert "rank_heads\n  Heads that leave the FP8 range, most first" in listed


def test_the_command_refuses_what_it_cannot_do(run: Run, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for error, arguments in (
        (QueryError, (run.path,)),
        (QueryError, (run.path, "rank_heads", "--sql", "SELECT 1")),
        (QueryError, (run.path, "rank_heads", "--param", "top")),
        (InputError, (run.path, "rank_heads", "--format", "parquet")),
        (OutputExistsError, (run.path, "rank_heads", "-o", taken)),
        (OutputExistsError, (run.path, "rank_heads", "--format", "parquet", "-o", taken)),
    ):
        with pytest.raises(error):
            invoke(*arguments)
    assert taken.read_text() == "mine"
