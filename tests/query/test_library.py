"""Every query has a true header, a case with an expected result, and a line that runs by hand."""

from __future__ import annotations

import csv
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fabricate_run import fabricate_run, read_tables

from kvtrace.query import Query, all_queries, connect_with_views, find_query, run_query
from kvtrace.query.library import DEFINITIONS, queries_folder, variables, variables_asked
from kvtrace.runs.open import open_run

CASES = Path(__file__).parents[1] / "queries"
QUERIES = all_queries()
EXPECTED = sorted(CASES.glob("*/expected/*.csv"))


def by_name(value: object) -> str:
    return value.name if isinstance(value, Query) else str(value)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run per input folder: a query's own, else the shared one."""
    root = tmp_path_factory.mktemp("runs")
    folders = {query.name: CASES / query.name / "input" for query in QUERIES}
    shared = fabricate_run(root / "shared.run", read_tables(CASES / "input"))
    return {
        name: fabricate_run(root / f"{name}.run", read_tables(folder)) if folder.exists() else shared
        for name, folder in folders.items()
    }


@pytest.mark.parametrize("case", EXPECTED, ids=lambda file: f"{file.parts[-3]}-{file.stem}")
def test_a_query_gives_the_expected_rows(case: Path, runs: dict[str, Path]) -> None:
    query = find_query(case.parts[-3])
    parameters = {} if case.stem == "defaults" else dict(pair.split("=") for pair in case.stem.split(","))
    run = open_run(runs[query.name])
    result = run_query(connect_with_views(run), query, parameters)
    with case.open(newline="") as lines:
        header, *expected = list(csv.reader(lines))
    assert list(result.columns) == header
    assert len(result.rows) == len(expected)
    for found, wanted in zip(result.rows, expected, strict=True):
        for name, value, text in zip(header, found, wanted, strict=True):
            assert agrees(value, text), f"{name} is {value!r}, expected {text!r}, in {wanted}"


@pytest.mark.parametrize("query", QUERIES, ids=by_name)
def test_a_query_has_a_case_with_its_defaults(query: Query) -> None:
    assert (CASES / query.name / "expected" / "defaults.csv") in EXPECTED


@pytest.mark.parametrize("query", QUERIES, ids=by_name)
def test_a_query_documents_exactly_the_columns_it_gives(query: Query, runs: dict[str, Path]) -> None:
    run = open_run(runs[query.name])
    result = run_query(connect_with_views(run), query)
    assert list(query.columns) == list(result.columns)
    assert query.title
    assert query.grain


@pytest.mark.parametrize("query", QUERIES, ids=by_name)
def test_a_query_documents_the_parameters_it_reads_and_none_that_nothing_reads(query: Query) -> None:
    assert variables(query.sql) <= set(query.parameters) <= variables_asked(query.sql)


@pytest.mark.parametrize("query", QUERIES, ids=by_name)
def test_the_by_hand_line_of_a_query_runs_and_gives_the_same_rows(
    query: Query, runs: dict[str, Path]
) -> None:
    line = by_hand_line(query).replace("...", shlex.quote(str(queries_folder().parent)))
    shell = Path(sys.executable).with_name("duckdb")
    line = line.replace("RUN", shlex.quote(str(runs[query.name]))).replace(
        "duckdb ", f"{shlex.quote(str(shell))} -csv "
    )
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header, *rows = list(csv.reader(done.stdout.splitlines()))
    run = open_run(runs[query.name])
    result = run_query(connect_with_views(run), query)
    assert header == list(result.columns)
    assert len(rows) == len(result.rows)
    for found, wanted in zip(result.rows, rows, strict=True):
        assert all(
            agrees(value, "" if text == "NULL" else text) for value, text in zip(found, wanted, strict=True)
        )


@pytest.mark.parametrize("file", sorted(queries_folder().glob("*.sql")), ids=lambda file: file.stem)
def test_sql_files_stay_under_80_columns_and_order_their_rows(file: Path) -> None:
    sql = file.read_text()
    assert max(map(len, sql.splitlines())) < 80
    assert file.stem in DEFINITIONS or "\nORDER BY " in sql


def by_hand_line(query: Query) -> str:
    lines = [line.removeprefix("--").strip() for line in query.sql.splitlines() if line.startswith("--")]
    start = next(number for number, line in enumerate(lines) if line.startswith("By hand: "))
    parts = [lines[start].removeprefix("By hand: ")]
    while parts[-1].endswith("\\"):
        start += 1
        parts[-1] = parts[-1].removesuffix("\\")
        parts.append(lines[start])
    return "".join(parts)


def agrees(value: Any, text: str) -> bool:
    """Whether a value is what a CSV field says; a field may be a quotient such as 5/70."""
    if value is None or text == "":
        return value is None and text == ""
    if isinstance(value, bool):
        return text == str(value).lower()
    if isinstance(value, int | float):
        numerator, _, denominator = text.partition("/")
        return math.isclose(value, float(numerator) / float(denominator or 1), rel_tol=1e-9, abs_tol=1e-15)
    return str(value) == text
