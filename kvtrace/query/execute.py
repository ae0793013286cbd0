"""Run SQL on a run: a query of the library, or a user's, with parameters as DuckDB variables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import duckdb

from kvtrace.errors import QueryError
from kvtrace.query.connection import RunConnection
from kvtrace.query.guard import refuse_unless_select
from kvtrace.query.library import variables_asked
from kvtrace.query.parameters import check_values
from kvtrace.runs.open import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from kvtrace.query.library import Query
    from kvtrace.runs.open import Run

_Fetched = TypeVar("_Fetched")
DEFAULT_SECONDS: Final = 60.0
"""For a user's own SQL."""
_MOST_ROWS: Final = 1_000_000


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


def connect_with_views(
    run: Run,
    *,
    candidates: Sequence[str] | None = None,
    large_on_all_cores: bool = False,
    memory_bytes: int | None = None,
) -> RunConnection:
    """Return a locked, read-only connection to the run that has the views and measures of `queries/`.

    candidates, large_on_all_cores, memory_bytes: see `kvtrace.runs.open.connect`.
    """
    return RunConnection(
        connect(run, candidates=candidates, large_on_all_cores=large_on_all_cores, memory_bytes=memory_bytes)
    )


def run_query(
    connection: RunConnection,
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


def run_query_table(connection: RunConnection, query: Query) -> pa.Table:
    """Return the rows of a query of the library, with its defaults, as an Arrow table: for many rows."""

    def fetch() -> pa.Table:
        return connection.relation(query.sql).to_arrow_table()

    return _executed(connection, query.sql, {}, fetch)


def run_sql(
    connection: RunConnection,
    sql: str,
    parameters: Mapping[str, str] | None = None,
    *,
    limit: int | None = None,
    seconds: float = DEFAULT_SECONDS,
) -> Result:
    """Return the rows of a user's SELECT.

    Raises QueryError: it is not one SELECT, uses a function that could read or change anything but the run,
    is wrong, needs more than `seconds` or the connection's memory, or gives more than a million rows unless
    `limit` asks for fewer.
    """
    parameters = parameters or {}
    refuse_unless_select(connection, sql)
    _check_known(parameters, variables_asked(sql), "the SQL")
    try:
        result = _run(connection, sql, parameters, min(limit or _MOST_ROWS, _MOST_ROWS), seconds)
    except TimeoutError as error:
        raise QueryError(f"the SQL was stopped after {seconds:g} s; --seconds gives it more") from error
    if result.truncated and (limit or _MOST_ROWS + 1) > _MOST_ROWS:
        raise QueryError(f"the SQL gives more than {_MOST_ROWS:,} rows; --limit, or LIMIT in it, takes fewer")
    return result


def _check_known(given: Mapping[str, str], known: set[str], where: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        takes = ", ".join(sorted(known)) or "no parameter"
        raise QueryError(f"{where} has no parameter {unknown[0]!r}; it takes {takes}")


def _run(
    connection: RunConnection,
    sql: str,
    parameters: Mapping[str, str],
    limit: int | None,
    seconds: float | None = None,
) -> Result:
    def fetch() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        cursor = connection.execute(sql)
        columns = tuple(str(entry[0]) for entry in cursor.description or ())
        return columns, cursor.fetchall() if limit is None else cursor.fetchmany(limit + 1)

    columns, rows = _executed(connection, sql, parameters, fetch, seconds)
    if limit is not None and len(rows) > limit:
        return Result(columns, rows[:limit], truncated=True)
    return Result(columns, rows)


def _executed(
    connection: RunConnection,
    sql: str,
    parameters: Mapping[str, str],
    fetch: Callable[[], _Fetched],
    seconds: float | None = None,
) -> _Fetched:
    try:
        # A NULL variable is an absent one: a parameter of the last query must not reach this one.
        for name in sorted(variables_asked(sql)):
            connection.execute(f'SET VARIABLE "{name}" = ?', [parameters.get(name)])
        return _interruptible(connection, fetch, seconds)
    except duckdb.OutOfMemoryException as error:
        raise QueryError(
            f"the SQL needs too much memory; --memory gives more ({_first_line(error)})"
        ) from error
    except duckdb.Error as error:
        raise QueryError(_first_line(error)) from error


def _interruptible(
    connection: RunConnection, fetch: Callable[[], _Fetched], seconds: float | None
) -> _Fetched:
    """Return what `fetch` does; a signal ends it at once. Raises TimeoutError: it takes more than `seconds`.

    In a thread of its own: DuckDB looks for signals between its tasks alone, which may be as long as a query.
    """
    with ThreadPoolExecutor(1, "kvtrace-query") as pool:
        fetched = pool.submit(fetch)
        try:
            return fetched.result(seconds)
        except BaseException:
            while not fetched.done():  # once may be before the query begins
                connection.interrupt()
                wait((fetched,), 0.05)
            raise


def _first_line(error: duckdb.Error) -> str:
    return " ".join(line.strip() for line in str(error).split("\n\n")[0].splitlines())
