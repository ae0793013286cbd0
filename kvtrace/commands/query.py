"""`kvtrace query`: ask a run anything in SQL."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtrace.commands.options import FORCE, JSON, OUTPUT, deliver
from kvtrace.errors import InputError, QueryError

if TYPE_CHECKING:
    from kvtrace.query import Result


def query(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="The output of kvtrace replay.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A query; see --list.")] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="Your own SELECT.")] = None,
    param: Annotated[list[str] | None, typer.Option("--param", help="NAME=VALUE, repeatable.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Give at most this many rows.")] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.001, help="After so long, --sql is stopped.")
    ] = 60.0,
    memory: Annotated[str, typer.Option("--memory", help="The most that --sql may take.")] = "1GiB",
    output_format: Annotated[Literal["table", "csv", "json", "parquet"], typer.Option("--format")] = "table",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
    list_queries: Annotated[bool, typer.Option("--list", help="Say which queries there are.")] = False,
    show: Annotated[
        str | None, typer.Option("--show", metavar="NAME", help="Print a query's SQL, its header first.")
    ] = None,
    show_path: Annotated[
        bool, typer.Option("--path", help="Print where the queries lie; they run in the duckdb shell too.")
    ] = False,
) -> None:
    """Run a query of the library, or your own SELECT, on a run. Nothing beyond the run is read or written.

    Your SELECT sees the run's tables as views: cells, groups, magnitudes, vectors, tokens, rows, requests,
    scales, candidates, findings, sweep and sampling; --sql 'DESCRIBE cells' shows the columns of one. Its
    macros give sums, and 95 % intervals that count requests: queries/measures.sql and intervals.sql.
    """
    from kvtrace.extras import require_extra

    require_extra("analysis", "query", "duckdb")
    if list_queries:
        deliver(_catalogue(), output, force=force)
        return
    if show is not None:
        from kvtrace.query import find_query

        deliver(find_query(show).sql, output, force=force)
        return
    if show_path:
        from kvtrace.query.library import queries_folder

        deliver(f"{queries_folder()}\n", output, force=force)
        return
    if run is None or (name is None) == (sql is None):
        raise QueryError("expected a run and either a query's name or --sql; kvtrace query --list names them")
    from kvtrace.capture.options import parse_bytes
    from kvtrace.query import connect_with_views, find_query, run_query, run_sql
    from kvtrace.runs.open import open_run

    parameters = _parameters(param or [])
    found = None if name is None else find_query(name)
    opened = open_run(run)
    own_memory = None if sql is None else parse_bytes(memory)
    connection = connect_with_views(opened, large_on_all_cores=True, memory_bytes=own_memory)
    if found is not None:
        result = run_query(connection, found, parameters, limit=limit)
    else:
        result = run_sql(connection, sql or "", parameters, limit=limit, seconds=seconds)
    _deliver(result, "json" if as_json else output_format, output, force=force)


def _catalogue() -> str:
    from kvtrace.query.library import all_queries

    return "".join(
        f"{found.name}\n  {found.title}\n  --param {', '.join(found.parameters)}\n" for found in all_queries()
    )


def _parameters(pairs: list[str]) -> dict[str, str]:
    parameters = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise QueryError(f"--param {pair!r}: expected NAME=VALUE, such as --param top=20")
        if name in parameters:
            raise QueryError(f"--param {name} is given twice; expected one value")
        parameters[name] = value
    return parameters


def _deliver(result: Result, result_format: str, output: Path | None, *, force: bool) -> None:
    from kvtrace.query.output import as_csv, as_json, as_parquet, as_table

    if result_format == "parquet":
        if output is None:
            raise InputError("--format parquet: Parquet is binary; name a file with -o FILE")
        deliver(as_parquet(result), output, force=force)
    elif result_format == "table":
        text, left_out = as_table(result, _terminal_width(output))
        deliver(text, output, force=force)
        if left_out:
            typer.echo(
                f"{len(left_out)} more columns ({', '.join(left_out)}): --format csv shows all", err=True
            )
    else:
        text = as_csv(result) if result_format == "csv" else as_json(result)
        deliver(text, output, force=force, for_programs=True)
    if result.truncated:
        typer.echo(f"the first {len(result.rows):,} rows; there are more", err=True)


def _terminal_width(output: Path | None) -> int | None:
    """Return the columns of the terminal that stdout is, or None where it is a pipe or a file."""
    import shutil
    import sys

    if output is not None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns
