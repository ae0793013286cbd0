"""Open a run: check that it is whole, and connect DuckDB to its tables, read only and nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from kvtrace.errors import IntegrityError, NotATraceError, SchemaVersionError
from kvtrace.files.regular import read_regular
from kvtrace.plain_text import plain
from kvtrace.runs.checksums import check_table
from kvtrace.runs.record import RunRecord
from kvtrace.runs.schema import RUN_FILE, SCALES, TABLES
from kvtrace.runs.table import RUN_SCHEMA_VERSION
from kvtrace.trace.format import TRACE_FILE, unseal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.runs.table import Column, Table

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # A SQL name must never resolve to a Python variable of the caller.
    "python_enable_replacements": "false",
    # Spilling would write next to the user's files.
    "temp_directory": "",
    # Several add floats in the order in which they end, so that last digits differ from time to time.
    "threads": 1,
}
_LARGE_BYTES: Final = 32_000_000
"""A million cells or so, which one thread groups in half a second."""
_LACKING_VALUES: Final = """
SELECT file_name, path_in_schema
FROM parquet_metadata($1)
GROUP BY ALL
HAVING sum(stats_null_count) > 0
"""
"""A replay leaves nothing out where a column's meaning does not say so."""
_BROKEN_LIMITS: Final = """
SELECT candidate
FROM "scales.parquet" JOIN "candidates.parquet" USING (candidate)
WHERE (covered_amax IS NULL) <> (max_in_range_code IS NULL)
  OR (covered_amax IS NULL) <> (max_unclipped_code IS NULL)
  OR scale IS NOT NULL AND covered_amax IS NULL AND kind NOT IN ('online', 'format')
LIMIT 1
"""
"""What a scale covers, and its codes, are made together."""
_SQL_TYPES: Final = {
    "string": "VARCHAR",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "bool_": "BOOLEAN",
    "list_int32": "INTEGER[]",
}


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run on disk, checked to be whole."""

    path: Path
    record: RunRecord

    @property
    def minor_version(self) -> int:
        """Return the minor version of its schema, which says which tables and columns it has."""
        return _version_numbers(self.record.schema_version)[1]

    def holds(self, part: Table | Column) -> bool:
        """Return whether its schema version has the table or column."""
        return part.since <= self.minor_version


def open_run(path: Path | str) -> Run:
    """Return the run at `path`.

    Raises NotATraceError: no run. SchemaVersionError: of a newer kvtrace. IntegrityError: a file is
    missing or not the one that was written; the text names it.
    """
    path = Path(path)
    record_file = path / RUN_FILE
    if not os.path.lexists(record_file):
        raise NotATraceError(_not_a_run(path))
    record = _read_record(record_file)
    run = Run(path, record)
    for table in filter(run.holds, TABLES):
        check_table(path, table, record.tables.get(table.file_name))
    return run


def connect(
    run: Run,
    *,
    candidates: Sequence[str] | None = None,
    large_on_all_cores: bool = False,
    memory_bytes: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection with one view per file, named like the file (`FROM 'cells.parquet'`).

    The same SQL gives the same rows to the last bit each time, by one thread; connections work side by side.
    candidates: the connection sees the rows of these alone; None: of all.
    large_on_all_cores: give that up in a run whose tables have more than 32 MB, for the speed of one query.
    memory_bytes: the most that it may take; None: DuckDB's own limit.
    In a run of an earlier minor version, a table that it does not have is empty and a column is NULL; one
    that had another type there is made one of today's. It can read the run's files and reach no other file,
    no network and no extension; its settings are locked.
    Raises IntegrityError: a Parquet file is damaged, lacks a column or has one of another type, has no row or
    no value where every run has some.
    """
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    if memory_bytes is not None:
        connection.execute(f"SET memory_limit = '{memory_bytes}B'")
    # Views stand on views: each of them would read the end of its files again. Cursors take global settings.
    connection.execute("SET GLOBAL parquet_metadata_cache = true")
    for table in TABLES:
        _create_view(connection, run, table, candidates)
    _check_columns(connection, run)
    paths = [str(_file(run, table)) for table in TABLES]
    # DuckDB checks a path twice: as the pattern it was given, and as the file that it found.
    allowed = ", ".join(_literal(form) for path in paths for form in {path, _glob_escaped(path)})
    connection.execute("SET enable_progress_bar = false")
    if large_on_all_cores and _num_bytes(run) > _LARGE_BYTES:
        connection.execute("RESET threads")
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def missing_run(path: Path, expected: str, lacking: str = f"not a kvtrace run (no {RUN_FILE})") -> str:
    """Return why there is no run at `path`, what was expected and what to do.

    expected, lacking: what would have been taken, and what a directory that is none of it lacks, in words.
    """
    if not path.exists():
        return f"{path}: no such file or directory; expected {expected}"
    if not path.is_dir():
        return f"{path}: is a file; expected the directory of {expected}"
    if any((path / table.file_name).exists() for table in TABLES):
        return (
            f"{path}: {RUN_FILE} is missing beside the tables of a run, so the run is not whole; expected "
            f"{expected}. Run kvtrace replay again, with another -o"
        )
    return f"{path}: {lacking}; expected {expected}. kvtrace replay TRACE -o RUN makes a run"


def _not_a_run(path: Path) -> str:
    if (path / TRACE_FILE).exists():
        return f"{path}: a trace, not a run; kvtrace replay makes a run of it"
    return missing_run(path, "a run, the output of kvtrace replay")


def _read_record(file: Path) -> RunRecord:
    try:
        content = read_regular(file)
    except OSError as error:
        raise IntegrityError(
            f"{file}: cannot be read ({error.strerror}). Run kvtrace replay again"
        ) from error
    _check_version(file, content)
    try:
        return unseal(content, RunRecord)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{file}: damaged: {reason}. Run kvtrace replay again") from error


def _check_version(file: Path, content: bytes) -> None:
    """Check the version before the fields: a newer major version may have changed any of them."""
    import json

    try:
        version = json.loads(content)["schema_version"]
        major, _ = _version_numbers(version)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{file}: no sound JSON record of a run; run kvtrace replay again") from error
    if major > int(RUN_SCHEMA_VERSION.split(".")[0]):
        raise SchemaVersionError(
            f"{file}: schema version {version}, this kvtrace reads up to {RUN_SCHEMA_VERSION}; "
            "install a newer kvtrace"
        )


def _version_numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return int(major), int(minor)


def _create_view(
    connection: duckdb.DuckDBPyConnection, run: Run, table: Table, candidates: Sequence[str] | None
) -> None:
    file = _file(run, table)
    # A directory called layer=3 must not become a column, so no Hive partitions.
    source = f"read_parquet({_literal(_glob_escaped(str(file)))}, hive_partitioning = false)"
    names = ", ".join(f'{_value(run, table, one)} AS "{one.name}"' for one in table.columns)
    origin = f"FROM {source}" if run.holds(table) else "WHERE false"
    if candidates is not None and run.holds(table) and any(one.name == "candidate" for one in table.columns):
        origin += f" WHERE candidate IN ({', '.join(map(_literal, candidates)) or 'NULL'})"
    try:
        connection.execute(f'CREATE VIEW "{table.file_name}" AS SELECT {names} {origin}')
    except duckdb.BinderException as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{file}: not the {table.name} table of a run: {reason}") from error
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{file}: damaged: {reason}. Run kvtrace replay again") from error


def _check_columns(connection: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Check that the files can be the tables that a replay wrote: by their types, and where nothing is."""
    columns = connection.execute("SELECT table_name, column_name, data_type FROM duckdb_columns()").fetchall()
    types = {(table, column): found for table, column, found in columns}
    held = [table for table in TABLES if run.holds(table)]
    files = {str(_file(run, table)): table.file_name for table in held}
    patterns = [_glob_escaped(file) for file in files]
    lacking = {
        (files[file], column) for file, column in connection.execute(_LACKING_VALUES, [patterns]).fetchall()
    }
    for table in held:
        for column in table.columns:
            found, expected = types[table.file_name, column.name], _SQL_TYPES[column.type_name]
            why = f"is {found}, expected {expected}" if found != expected else ""
            if run.holds(column) and not column.may_lack_values:
                why = why or "lacks values" * ((table.file_name, column.name) in lacking)
            if why:
                raise _no_table(run, table, f"column {column.name} {why}")
    if broken := connection.execute(_BROKEN_LIMITS).fetchone():
        raise _no_table(run, SCALES, f"the limits of {plain(str(broken[0]), 80)} lack values")


def _no_table(run: Run, table: Table, why: str) -> IntegrityError:
    return IntegrityError(
        f"{_file(run, table)}: not the {table.name} table of a run: {why}. Run kvtrace replay again"
    )


def _file(run: Run, table: Table) -> Path:
    return (run.path / table.file_name).resolve()


def _value(run: Run, table: Table, column: Column) -> str:
    if not (run.holds(table) and run.holds(column)):
        return f"NULL::{_SQL_TYPES[column.type_name]}"
    return column.earlier if run.minor_version < column.retyped else f'"{column.name}"'


def _num_bytes(run: Run) -> int:
    return sum((run.path / table.file_name).stat().st_size for table in filter(run.holds, TABLES))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _glob_escaped(path: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)
