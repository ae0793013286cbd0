"""The `kvtrace` command: a visible list of subcommands, and the one place that turns errors into exit codes.

Exit codes: 0 gave what was asked, 1 a limit is breached, 2 unusable input or command line,
3 not enough coverage to tell, 70 a fault of kvtrace itself, 130 or 143 ended by a signal.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from kvtrace.errors import InputError, KVTraceError
from kvtrace.plain_text import plain_line
from kvtrace.signals import end_on_signals, exit_code_of_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_UNUSABLE = 2
EXIT_FAULT = 70
"""EX_SOFTWARE of sysexits.h: never that of a breach, which Python's own 1 would be."""
COMMANDS: Final = (
    "report",
    "inspect",
    "ls",
    "scales",
    "calibrate",
    "mend",
    "replay",
    "query",
    "compare",
    "check",
    "capacity",
    "plan",
    "outcomes",
    "serving",
    "goodput",
    "decide",
    "export-arrivals",
    "quality",
    "fixture",
    "capture",
)
"""In the order of the help. `export-arrivals` is `export_arrivals` in `commands/export_arrivals.py`."""
_REPLAYING: Final = ("report", "scales", "replay", "compare")


def _print_version(value: bool) -> None:
    if value:
        from kvtrace.version import __version__

        typer.echo(f"kvtrace {__version__}")
        raise typer.Exit


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


def command_line(words: Sequence[str] = ()) -> Callable[[], None]:
    """Return the command that the words name, ready to read `sys.argv`; all of them where none is named.

    Only that one is imported, and only its options are looked at.
    """
    named = next((word for word in words if not word.startswith("-")), None)
    return _built(named if named in COMMANDS else None)


@cache
def _built(name: str | None) -> Callable[[], None]:
    app = typer.Typer(
        name="kvtrace",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(kvtrace)
    for one in COMMANDS if name is None else (name,):
        in_python = one.replace("-", "_")
        found = getattr(import_module(f"kvtrace.commands.{in_python}"), in_python)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=one)
        else:
            app.command(one, cls=_class_of(one))(found)
    return get_command(app)


def _class_of(command: str) -> type[TyperCommand]:
    if command not in _REPLAYING:
        return TyperCommand
    from kvtrace.commands.candidate_options import CommandThatReplays

    return CommandThatReplays


def _refuse_unreadable(arguments: list[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode("utf-8", "backslashreplace").decode()
            raise InputError(f"{shown}: is not UTF-8; rename it, or link to it under another name") from error


def main() -> None:
    """Run the command line; an error becomes one line on stderr and exit code 2, a fault of kvtrace 70."""
    debug = "--debug" in sys.argv[1:]
    # A command is short and frees what is large by reference count. The collector would but walk the million
    # objects that imports make, again and again and once more at the exit: a second replay of the sample
    # takes 3.8 s of CPU without it and 4.9 with it (user and system, medians of 6 in turn, two busy cores).
    gc.disable()
    end_on_signals()
    try:
        _refuse_unreadable(sys.argv[1:])
        command_line(sys.argv[1:])()
    except KVTraceError as error:
        if debug:
            raise
        _end_with(str(error), EXIT_UNUSABLE)
    except MemoryError:
        if debug:
            raise
        _end_with("there is not enough memory for this; nothing was written", EXIT_UNUSABLE)
    except Exception as error:
        if debug:
            raise
        text = f"a fault of kvtrace, please report it ({type(error).__name__}: {error}); --debug shows where"
        _end_with(text, EXIT_FAULT)
    finally:
        gc.freeze()


def _end_with(text: str, code: int) -> None:
    """Say one line, harmless to a terminal whatever names are in it, and end; a signal's code comes first."""
    ended = exit_code_of_signal()
    if ended is None:
        with contextlib.suppress(OSError):  # stderr is closed: the exit code says it
            typer.echo(f"kvtrace: {plain_line(text)}", err=True)
    sys.exit(code if ended is None else ended)
