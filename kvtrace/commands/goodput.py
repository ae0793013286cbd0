"""`kvtrace goodput`: useful answers by class, run and variant."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.options import FORCE, FORMAT_TEXT_JSON, JSON, OUTPUT, deliver


def goodput(
    tables: Annotated[list[Path], typer.Argument(help="Tables of kvtrace serving.")],
    policy: Annotated[Path, typer.Option("--policy", help="A policy.toml with a table called serving.")],
    baseline: Annotated[
        str | None, typer.Option(help="Compare every other variant with this one, run by run.")
    ] = None,
    output_format: FORMAT_TEXT_JSON = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Count answers that are right and in time, among all requests that were planned in a fixed interval."""
    from kvtrace.extras import require_extra

    require_extra("analysis", "goodput", "scipy")
    from kvtrace.serving.contract import load_contract
    from kvtrace.serving.goodput import useful_goodput
    from kvtrace.serving.table import read_serving
    from kvtrace.serving.text import goodput_text

    contract = load_contract(policy)
    found = useful_goodput([read_serving(table) for table in tables], contract, baseline=baseline)
    if as_json or output_format == "json":
        deliver(found.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    else:
        deliver(goodput_text(found), output, force=force)
