"""The queries that come with kvtrace: SQL files whose header says what they answer.

A header is the block of `--` lines a file starts with: a sentence, `Grain:`, `By hand:`, and the lists
`Parameters` and `Columns`, each entry a name and what it means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from kvtrace.errors import QueryError

VIEWS: Final = "views"
_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS: Final = (_PACKAGE / "queries", _PACKAGE.parent / "queries")
"""In a wheel, and in a checkout."""
_ENTRY: Final = re.compile(r"^  (?P<name>[a-z][a-z0-9_]*) {2,}(?P<meaning>\S.*)$")
_CONTINUED: Final = re.compile(r"^ {5,}(?P<meaning>\S.*)$")
_VARIABLE: Final = re.compile(r"getvariable\(\s*'([^']+)'\s*\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """One SQL file: what it answers, what it takes and the columns it gives."""

    name: str
    path: Path
    sql: str
    title: str
    grain: str
    parameters: dict[str, str]
    columns: dict[str, str]


def find_query(name: str) -> Query:
    """Return the query called `name`.

    Raises QueryError: there is none; the text lists those there are.
    """
    known = {query.name: query for query in all_queries()}
    if name not in known:
        raise QueryError(
            f"no query is called {name!r}; there are {', '.join(known)} "
            "(kvtrace query --list says what each answers; --sql runs your own)"
        )
    return known[name]


@cache
def all_queries() -> tuple[Query, ...]:
    """Return every query, by name."""
    files = sorted(queries_folder().glob("*.sql"))
    return tuple(read_query(file) for file in files if file.stem != VIEWS)


def views_sql() -> str:
    """Return the SQL that makes the views every query starts from."""
    return (queries_folder() / f"{VIEWS}.sql").read_text(encoding="utf-8")


def queries_folder() -> Path:
    """Return the folder of the SQL files: the package's own, else the checkout's."""
    for folder in _FOLDERS:
        if (folder / f"{VIEWS}.sql").is_file():
            return folder
    raise QueryError(f"{_FOLDERS[0]}: no queries there; this install of kvtrace is incomplete")


def read_query(file: Path) -> Query:
    """Return the query of one SQL file, its header parsed."""
    sql = file.read_text(encoding="utf-8")
    header = _header(sql)
    title = header[0].strip()
    grain = next((line.removeprefix("Grain:").strip() for line in header if line.startswith("Grain:")), "")
    return Query(
        name=file.stem,
        path=file,
        sql=sql,
        title=title,
        grain=grain,
        parameters=_entries(header, "Parameters"),
        columns=_entries(header, "Columns"),
    )


def variables(sql: str) -> set[str]:
    """Return the names that the SQL reads with getvariable.

    >>> sorted(variables("SELECT getvariable('top'), getvariable( 'a' )"))
    ['a', 'top']
    """
    return set(_VARIABLE.findall(sql))


def _header(sql: str) -> list[str]:
    lines = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line[2:].removeprefix(" "))
    return lines


def _entries(header: list[str], section: str) -> dict[str, str]:
    """Return name → meaning of one section; it ends at an empty line."""
    if section not in header:
        return {}
    entries: dict[str, str] = {}
    name = ""
    for line in header[header.index(section) + 1 :]:
        if entry := _ENTRY.match(line):
            name = entry["name"]
            entries[name] = entry["meaning"]
        elif (more := _CONTINUED.match(line)) and name:
            entries[name] += " " + more["meaning"]
        else:
            break
    return entries
