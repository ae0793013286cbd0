"""`kvtrace capture`: what there is to do before vLLM writes a trace."""

from __future__ import annotations

import typer

from kvtrace.commands.capture_control import capture_control
from kvtrace.commands.capture_flags import capture_flags
from kvtrace.commands.capture_plan import capture_plan
from kvtrace.commands.capture_run import capture_run

capture = typer.Typer(
    no_args_is_help=True, help="Make a trace: flags for a server, an offline run, a plan, a running engine."
)
capture.command("flags")(capture_flags)
capture.command("run")(capture_run)
capture.command("plan")(capture_plan)
capture.command("control")(capture_control)
