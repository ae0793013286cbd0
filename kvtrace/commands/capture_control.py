"""`kvtrace capture control`: the sampling of a running engine, seen and changed."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.capture_options import BYTE_BUDGET  # noqa: TC001 -- Typer reads the annotations
from kvtrace.commands.options import JSON, say
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from kvtrace.capture.control import InForce

_WAIT_S = 3.0
"""The plug-in looks twice a second."""


def capture_control(
    directory: Annotated[Path, typer.Argument(help="The directory that capture was told to write to.")],
    enabled: Annotated[bool | None, typer.Option("--on/--off", help="Switch capture on or off.")] = None,
    position_stride: Annotated[
        int | None,
        typer.Option("--position-stride", "--stride", min=1, help="Sample 1 in this many positions."),
    ] = None,
    request_fraction: Annotated[
        float | None,
        typer.Option("--request-fraction", min=0.0, max=1.0, help="Share of requests, above 0."),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option("--workload", help="Only requests with this label; repeatable.")
    ] = None,
    byte_budget: BYTE_BUDGET = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Go back to what the engine was started with.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Change nothing. So without any option.")] = False,
    as_json: JSON = False,
) -> None:
    """Show or change what a running engine captures, without a restart: more, less, or nothing.

    What is not named stays as it was asked for before. Exit code 3 if no engine took the change at once.
    """
    import json

    from kvtrace.capture.control import ask, asked_for, control_file, in_force, wait_for
    from kvtrace.capture.control import reset as remove
    from kvtrace.capture.options import parse_bytes

    if request_fraction == 0:
        raise InputError("--request-fraction 0: expected more than 0; --off switches capture off")
    given = {
        "enabled": enabled,
        "position_stride": position_stride,
        "request_fraction": request_fraction,
        "workloads": workload,
        "byte_budget": None if byte_budget is None else parse_bytes(byte_budget),
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if (status or reset) and (changes or (status and reset)):
        raise InputError("--status and --reset stand alone; leave out the changes, or leave out the other")
    taken: bool | None = None
    if reset:
        remove(directory)
        wanted: dict[str, Any] = {}
    elif changes:
        wanted = ask(directory, changes)
        taken = wait_for(directory, wanted, _WAIT_S)
    else:
        wanted = asked_for(directory)
    found = in_force(directory)
    if as_json:
        record = {
            "control_file": str(control_file(directory)),
            "asked_for": wanted,
            "trace": str(found.trace) if found else None,
            "in_force": found.rules.model_dump(mode="json") if found else None,
            "closed": found.closed if found else None,
            "taken": taken,
        }
        say(json.dumps(record, indent=2) + "\n", for_programs=True)
    else:
        say(_text(directory, wanted, found, taken))
    if taken is False:
        raise typer.Exit(3)


def _text(directory: Path, wanted: dict[str, Any], found: InForce | None, taken: bool | None) -> str:
    from kvtrace.capture.control import control_file
    from kvtrace.plain_text import plain
    from kvtrace.trace.summary_text import sampling_text

    asked = ", ".join(f"{key} {plain(str(value), 80)}" for key, value in wanted.items())
    lines = [f"asked for  {asked or 'nothing: as the engine was started'}"]
    if found is None:
        lines.append("in force   not known: no trace here can be read")
    else:
        name = plain(found.trace.name, 120)
        lines.append("in force   " + sampling_text(found.rules).replace("\n", "\n           "))
        lines.append(f"           in {name}{', which its engine has ended' if found.closed else ''}")
    if taken is False:
        lines.append(
            f"No engine took it within {_WAIT_S:.0f} s. Does one run that captures into {directory}? "
            f"{control_file(directory).name} must belong to its user or to root."
        )
    return "\n".join(lines) + "\n"
