"""Refuse a user's SQL unless it is one SELECT over the run.

DuckDB itself is locked to the run's files (`kvtrace.runs.open.connect`), but its locks would let a COPY write
to these. So the statement is parsed, by DuckDB, and every node looked at: only SELECTs, and only table
functions that make rows out of nothing, or measures of `queries/`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import duckdb

from kvtrace.errors import QueryError
from kvtrace.query.library import table_measures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.query.connection import RunConnection

_SELECT_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"})
_MAX_CHARS: Final = 20_000
"""Planning takes no limit of time, and grows with the square of this."""
_TABLE_FUNCTIONS: Final = frozenset({"unnest", "range", "generate_series"})


def refuse_unless_select(connection: RunConnection, sql: str) -> None:
    """Raise QueryError unless `sql` is exactly one SELECT without reading or changing table functions."""
    for node in _nodes(_parsed(connection, sql)):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in _SELECT_NODES:
            verb = kind.removesuffix("_NODE").replace("_", " ")
            raise QueryError(f"the SQL is refused: {verb} would change something; only SELECT is run")
        if kind == "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS | table_measures():
                raise QueryError(
                    f"the SQL is refused: the table function {name} could reach beyond the run; ask the "
                    "views cells, groups, vectors, tokens, rows, requests, scales, candidates, sampling, …"
                )


def _parsed(connection: RunConnection, sql: str) -> Any:
    if len(sql) > _MAX_CHARS:
        raise QueryError(f"the SQL has {len(sql):,} characters, expected at most {_MAX_CHARS:,}")
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(f"the SQL is wrong: {' '.join(str(error).split())}") from error
    if len(statements) != 1:
        raise QueryError(f"the SQL has {len(statements)} statements; expected one SELECT")
    found = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    try:
        tree = json.loads(found[0]) if found else {"error": True}
    except RecursionError as error:
        raise QueryError("the SQL nests too deeply") from error
    if tree.get("error"):
        raise QueryError("the SQL is refused: only a SELECT is run, and nothing that changes anything")
    return tree


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of the parse tree; an explicit stack, since hostile SQL nests deeply."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
