"""The `kvtrace` command: a visible list of subcommands, and the one place that turns errors into exit codes.

Exit codes: 0 gave what was asked, 1 a limit is breached, 2 unusable input or command line,
3 not enough coverage to tell.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import Annotated

import typer

from kvtrace.commands.calibrate import calibrate
from kvtrace.commands.capture import capture
from kvtrace.commands.check import check
from kvtrace.commands.compare import compare
from kvtrace.commands.inspect import inspect
from kvtrace.commands.query import query
from kvtrace.commands.replay import replay
from kvtrace.commands.report import report
from kvtrace.commands.scales import scales
from kvtrace.errors import InputError, KVTraceError

EXIT_UNUSABLE = 2

app = typer.Typer(
    name="kvtrace",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(report)
app.command()(inspect)
app.command()(scales)
app.command()(calibrate)
app.command()(replay)
app.command()(query)
app.command()(compare)
app.command()(check)
app.add_typer(capture, name="capture")


def _print_version(value: bool) -> None:
    if value:
        from kvtrace.version import __version__

        typer.echo(f"kvtrace {__version__}")
        raise typer.Exit


@app.callback()
def kvtrace(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Find out whether FP8 KV-cache scales still cover what a model now produces.

    Everything works offline on a saved trace: which layer, which KV head, K or V, at which positions and in
    which workload values leave the range of the scales, and what other scales would do.
    """


def _end(number: int, _: object) -> None:
    """End as Ctrl-C does, so that nothing half-written stays behind."""
    sys.exit(128 + number)


def _refuse_unreadable(arguments: list[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode("utf-8", "backslashreplace").decode()
            raise InputError(f"{shown}: is not UTF-8; rename it, or link to it under another name") from error


def main() -> None:
    """Run the command line; an expected error becomes one line on stderr and exit code 2."""
    debug = "--debug" in sys.argv[1:]
    # A command is short and frees what is large by reference count. The collector would but walk the million
    # objects that imports make, again and again and once more at the exit: a second replay of the sample
    # takes 3.8 s of CPU without it and 4.9 with it (user and system, medians of 6 in turn, two busy cores).
    gc.disable()
    signal.signal(signal.SIGTERM, _end)
    try:
        _refuse_unreadable(sys.argv[1:])
        app()
    except KVTraceError as error:
        if debug:
            raise
        typer.echo(f"kvtrace: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
