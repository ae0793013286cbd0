"""The queries that come with kvtrace: SQL files whose header says what they answer.

A header is the block of `--` lines a file starts with: a sentence, `Grain:`, `By hand:`, and the lists
`Parameters` and `Columns`. Each entry is a name and what it means; that of a parameter says first what it
takes (`kvtrace.query.parameters`) and what holds without it:

    --   top        whole number from 1; 10  heads shown per candidate
    --   candidate  candidate; all           this one alone
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

from kvtrace.errors import QueryError
from kvtrace.query.parameters import Parameter, parameter_kind

DEFINITIONS: Final = ("views", "intervals", "measures")
"""Files that make what every query asks, in this order; they are no queries."""
_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS: Final = (_PACKAGE / "queries", _PACKAGE.parent / "queries")
"""In a wheel, and in a checkout."""
_ENTRY: Final = re.compile(r"^  (?P<name>[a-z][a-z0-9_]*) {2,}(?P<meaning>\S.*)$")
_CONTINUED: Final = re.compile(r"^ {5,}(?P<meaning>\S.*)$")
_TAKEN: Final = re.compile(r"^(?P<kind>\S(?: ?[^ ;])*)(?:; (?P<default>\S(?: ?\S)*))? {2,}(?P<meaning>\S.*)$")
_VARIABLE: Final = re.compile(r"getvariable\(\s*'([^']+)'\s*\)", re.IGNORECASE)
_DEFINITION: Final = re.compile(r"^CREATE OR REPLACE (?:VIEW|MACRO) (\w+).*?;$", re.MULTILINE | re.DOTALL)
_TABLE_MACRO: Final = re.compile(r"CREATE OR REPLACE MACRO \w+\([^)]*\) AS TABLE$", re.MULTILINE)
_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Query:
    """One SQL file: what it answers, what it takes and the columns it gives."""

    name: str
    path: Path
    sql: str
    title: str
    grain: str
    parameters: dict[str, Parameter]
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
    return tuple(read_query(file) for file in files if file.stem not in DEFINITIONS)


@cache
def definitions() -> dict[str, str]:
    """Return name → SQL of the views, macros and measures that queries ask; each asks earlier ones alone."""
    texts = [(queries_folder() / f"{name}.sql").read_text(encoding="utf-8") for name in DEFINITIONS]
    return {match[1]: match[0] for text in texts for match in _DEFINITION.finditer(text)}


def definitions_asked(sql: str) -> list[str]:
    """Return the definitions that the SQL names, and those that these name, in the order to make them in.

    >>> definitions_asked("SELECT count(*) FROM chosen_requests")
    ['requests', 'is_asked', 'is_source', 'chosen_requests']
    """
    found: set[str] = set()
    for name in _named(sql):
        found |= _closure(name)
    return [name for name in definitions() if name in found]


@cache
def table_measures() -> frozenset[str]:
    """Return the names of the measures that give a table, such as value_sums."""
    return frozenset(name for name, sql in definitions().items() if _TABLE_MACRO.match(sql))


def queries_folder() -> Path:
    """Return the folder of the SQL files: the package's own, else the checkout's."""
    for folder in _FOLDERS:
        if (folder / f"{DEFINITIONS[0]}.sql").is_file():
            return folder
    raise QueryError(f"{_FOLDERS[0]}: no queries there; this install of kvtrace is incomplete")


def read_query(file: Path) -> Query:
    """Return the query of one SQL file, its header parsed.

    Raises QueryError: a parameter takes nothing that `kvtrace.query.parameters` knows.
    """
    sql = file.read_text(encoding="utf-8")
    header = _header(sql)
    return Query(
        name=file.stem,
        path=file,
        sql=sql,
        title=header[0].strip(),
        grain=_grain(header),
        parameters={
            name: _parameter(f"{file}: parameter {name}", said)
            for name, said in _entries(header, "Parameters").items()
        },
        columns=_entries(header, "Columns"),
    )


def variables(sql: str) -> set[str]:
    """Return the names that the SQL itself reads with getvariable.

    >>> sorted(variables("SELECT getvariable('top'), getvariable( 'a' )"))
    ['a', 'top']
    """
    return set(_VARIABLE.findall(sql))


def variables_asked(sql: str) -> set[str]:
    """Return the names that the SQL reads, itself or through the views and measures that it asks.

    >>> sorted(variables_asked("SELECT getvariable('top') FROM chosen_requests"))
    ['source', 'top', 'workload']
    """
    return variables(sql).union(*(variables(definitions()[name]) for name in definitions_asked(sql)))


@cache
def _closure(name: str) -> frozenset[str]:
    """Return a definition's name, and those of all that it asks."""
    earlier = _named(definitions()[name]) - {name}
    return frozenset({name}).union(*map(_closure, earlier))


def _named(sql: str) -> set[str]:
    """Return the definitions that the SQL itself names; SQL is blind to capitals."""
    return {word.lower() for word in _WORD.findall(_COMMENT.sub("", sql))} & definitions().keys()


def _parameter(where: str, said: str) -> Parameter:
    taken = _TAKEN.match(said)
    if taken is None:
        raise QueryError(f"{where}: expected what it takes, two spaces and what it means, found {said!r}")
    return Parameter(
        kind=parameter_kind(where, taken["kind"]),
        takes=taken["kind"],
        default=taken["default"],
        meaning=" ".join(taken["meaning"].split()),
    )


def _grain(header: list[str]) -> str:
    """Return what a row stands for: from `Grain:` to the next entry or empty line."""
    begin = next((number for number, line in enumerate(header) if line.startswith("Grain:")), len(header))
    lines = [line.removeprefix("Grain:").strip() for line in header[begin:]]
    return " ".join(takewhile(lambda line: line and not line.startswith("By hand:"), lines))


def _header(sql: str) -> list[str]:
    comments = takewhile(lambda line: line.startswith("--"), sql.splitlines())
    return [line[2:].removeprefix(" ") for line in comments]


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
