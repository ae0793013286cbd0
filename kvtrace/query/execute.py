"""Run SQL on a run: a query of the library, or a user's, with parameters as DuckDB variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from kvtrace.errors import QueryError
from kvtrace.query.guard import refuse_unless_select
from kvtrace.query.library import definitions_sql, variables_asked
from kvtrace.query.parameters import check_values
from kvtrace.runs.open import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from kvtrace.query.library import Query
    from kvtrace.runs.open import Run

_Fetched = TypeVar("_Fetched")


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of one query, in order."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool = False
    """Whether a limit left rows out."""

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield each row as column → value."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


def connect_with_views(run: Run, *, large_on_all_cores: bool = False) -> duckdb.DuckDBPyConnection:
    """Return a locked, read-only connection to the run that has the views and measures of `queries/`.

    large_on_all_cores: see `kvtrace.runs.open.connect`.
    """
    connection = connect(run, large_on_all_cores=large_on_all_cores)
    connection.execute(definitions_sql())
    return connection


def run_query(
    connection: duckdb.DuckDBPyConnection,
    query: Query,
    parameters: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
) -> Result:
    """Return the rows of a query of the library; parameters it is not given keep their defaults.

    Raises QueryError: a parameter it does not have, or one with a value it cannot take, such as the name of a
    candidate that the run does not hold; the text says what it takes.
    """
    parameters = parameters or {}
    where = f"query {query.name}"
    _check_known(parameters, set(query.parameters), where)
    check_values(connection, where, query.parameters, parameters)
    return _run(connection, query.sql, parameters, limit)


def run_query_table(connection: duckdb.DuckDBPyConnection, query: Query) -> pa.Table:
    """Return the rows of a query of the library, with its defaults, as an Arrow table: for many rows."""

    def fetch() -> pa.Table:
        return connection.sql(query.sql).to_arrow_table()

    return _executed(connection, query.sql, {}, fetch)


def run_sql(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
) -> Result:
    """Return the rows of a user's SELECT.

    Raises QueryError: it is not one SELECT, uses a function that could read or change anything but the run,
    or is wrong.
    """
    parameters = parameters or {}
    refuse_unless_select(connection, sql)
    _check_known(parameters, variables_asked(sql), "the SQL")
    return _run(connection, sql, parameters, limit)


def _check_known(given: Mapping[str, str], known: set[str], where: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        takes = ", ".join(sorted(known)) or "no parameter"
        raise QueryError(f"{where} has no parameter {unknown[0]!r}; it takes {takes}")


def _run(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, str],
    limit: int | None,
) -> Result:
    def fetch() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        cursor = connection.execute(sql)
        columns = tuple(str(entry[0]) for entry in cursor.description or ())
        return columns, cursor.fetchall() if limit is None else cursor.fetchmany(limit + 1)

    columns, rows = _executed(connection, sql, parameters, fetch)
    if limit is not None and len(rows) > limit:
        return Result(columns, rows[:limit], truncated=True)
    return Result(columns, rows)


def _executed(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, str],
    fetch: Callable[[], _Fetched],
) -> _Fetched:
    try:
        # A NULL variable is an absent one: a parameter of the last query must not reach this one.
        for name in sorted(variables_asked(sql)):
            connection.execute(f'SET VARIABLE "{name}" = ?', [parameters.get(name)])
        return fetch()
    except duckdb.Error as error:
        raise QueryError(_first_line(error)) from error


def _first_line(error: duckdb.Error) -> str:
    return " ".join(line.strip() for line in str(error).split("\n\n")[0].splitlines())
