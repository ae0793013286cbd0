"""Open a run: check that it is whole, and connect DuckDB to its tables, read only and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from kvtrace.errors import IntegrityError, NotATraceError, SchemaVersionError
from kvtrace.runs.checksums import check_table
from kvtrace.runs.record import RunRecord
from kvtrace.runs.schema import RUN_FILE, RUN_SCHEMA_VERSION, TABLES
from kvtrace.trace.format import TRACE_FILE, unseal

if TYPE_CHECKING:
    from kvtrace.runs.schema import Table

_SETTINGS: Final[dict[str, str | bool | int | float | list[str]]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # A SQL name must never resolve to a Python variable of the caller.
    "python_enable_replacements": "false",
    # Spilling would write next to the user's files.
    "temp_directory": "",
}


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run on disk, checked to be whole."""

    path: Path
    record: RunRecord


def open_run(path: Path | str) -> Run:
    """Return the run at `path`.

    Raises NotATraceError: no run. SchemaVersionError: of a newer kvtrace. IntegrityError: a file is
    missing or not the one that was written; the text names it.
    """
    path = Path(path)
    record_file = path / RUN_FILE
    if not record_file.is_file():
        raise NotATraceError(_not_a_run(path))
    record = _read_record(record_file)
    for table in TABLES:
        check_table(path, table, record.tables.get(table.file_name))
    return Run(path, record)


def connect(run: Run) -> duckdb.DuckDBPyConnection:
    """Return a connection with one view per file, named like the file (`FROM 'cells.parquet'`).

    It can read the run's files and reach no other file, no network and no extension; its settings are locked.
    Raises IntegrityError: a Parquet file is damaged or lacks a column.
    """
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    for table in TABLES:
        _create_view(connection, table, (run.path / table.file_name).resolve())
    paths = [str((run.path / table.file_name).resolve()) for table in TABLES]
    # DuckDB checks a path twice: as the pattern it was given, and as the file that it found.
    allowed = ", ".join(_literal(form) for path in paths for form in {path, _glob_escaped(path)})
    connection.execute("SET enable_progress_bar = false")
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _not_a_run(path: Path) -> str:
    if not path.exists():
        return f"{path}: no such file or directory; expected a run, the output of kvtrace replay"
    if (path / TRACE_FILE).exists():
        return f"{path}: a trace, not a run; kvtrace replay makes a run of it"
    return f"{path}: not a kvtrace run (no {RUN_FILE}); expected the output directory of kvtrace replay"


def _read_record(file: Path) -> RunRecord:
    content = file.read_bytes()
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
        major = int(version.split(".")[0])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError(f"{file}: no sound JSON record of a run; run kvtrace replay again") from error
    if major > int(RUN_SCHEMA_VERSION.split(".")[0]):
        raise SchemaVersionError(
            f"{file}: schema version {version}, this kvtrace reads up to {RUN_SCHEMA_VERSION}; "
            "install a newer kvtrace"
        )


def _create_view(connection: duckdb.DuckDBPyConnection, table: Table, file: Path) -> None:
    # A directory called layer=3 must not become a column, so no Hive partitions.
    source = f"read_parquet({_literal(_glob_escaped(str(file)))}, hive_partitioning = false)"
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    try:
        connection.execute(f'CREATE VIEW "{table.file_name}" AS SELECT {names} FROM {source}')  # noqa: S608
    except duckdb.BinderException as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{file}: not the {table.name} table of a run: {reason}") from error
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise IntegrityError(f"{file}: damaged: {reason}. Run kvtrace replay again") from error


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _glob_escaped(path: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)
