"""A connection to a run that makes the views and measures of `queries/` when SQL first names them."""

from __future__ import annotations

import re
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import duckdb

from kvtrace.query.library import definitions, definitions_asked

if TYPE_CHECKING:
    from collections.abc import Sequence

_CATALOGUE: Final = re.compile(r"\b(show|information_schema|pg_\w+|duckdb_\w+)\b", re.IGNORECASE)
"""Words of SQL that asks what there is."""


class RunConnection:
    """DuckDB over one run, read only and locked.

    Of the some 70 views and measures most are bound down to the run's files, which takes longer than a small
    query; a query asks a dozen.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._made: set[str] = set()
        self._making = Lock()
        """Of both, for all cursors: two threads may name the same view first."""

    def cursor(self) -> RunConnection:
        """Return another connection to the same views and measures, for another thread."""
        other = RunConnection(self._connection.cursor())
        other._made, other._making = self._made, self._making
        return other

    def execute(self, sql: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> Any:
        """Run one statement; the value is DuckDB's cursor. Raises duckdb.Error."""
        self._make(sql)
        try:
            return self._connection.execute(sql, parameters)
        except duckdb.CatalogException:
            if self._made == definitions().keys():
                raise
        self._make_all()  # so that the error names what was meant
        return self._connection.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each of the parameters. Raises duckdb.Error."""
        self._make(sql)
        self._connection.executemany(sql, parameters)

    def relation(self, sql: str) -> duckdb.DuckDBPyRelation:
        """Return the rows of a SELECT as a relation, for Arrow. Raises duckdb.Error."""
        self._make(sql)
        return self._connection.sql(sql)

    def extract_statements(self, sql: str) -> list[duckdb.Statement]:
        """Return the statements of the SQL, parsed. Raises duckdb.Error."""
        return self._connection.extract_statements(sql)

    def interrupt(self) -> None:
        """End what runs in another thread."""
        self._connection.interrupt()

    def _make(self, sql: str) -> None:
        if _CATALOGUE.search(sql):
            self._make_all()
        else:
            self._make_those(definitions_asked(sql))

    def _make_all(self) -> None:
        self._make_those(list(definitions()))

    def _make_those(self, names: Sequence[str]) -> None:
        with self._making:
            missing = [name for name in names if name not in self._made]
            if missing:
                self._connection.execute("\n".join(definitions()[name] for name in missing))
                self._made.update(missing)
