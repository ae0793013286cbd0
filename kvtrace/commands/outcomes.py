"""`kvtrace outcomes`: judged answers of evaluations into one table."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated, Literal

import typer

from kvtrace.commands.options import FORCE, check_absent, say


def outcomes(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="[VARIANT=]FILE...",
            help="Own outcomes.jsonl, or a file of lm-eval, Inspect, aiperf or promptfoo.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The table: a new file.")],
    key: Annotated[
        Path | None,
        typer.Option("--key", help="The kvtrace.key beside the traces: rows can then be joined with them."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="The metric (lm-eval) or scorer (Inspect) that decides.")
    ] = None,
    filter_name: Annotated[
        str | None, typer.Option("--filter", help="Of lm-eval, where a task has several.")
    ] = None,
    partial: Annotated[
        Literal["pass", "fail"] | None, typer.Option(help="What Inspect's partial credit counts as.")
    ] = None,
    force: FORCE = False,
) -> None:
    """Read judged answers of each variant, and keep who passed; no prompt and no answer is kept.

    Refusals, malformed answers, timeouts and errors are failures and stay in the count.
    """
    from kvtrace.outcomes.collect import collect_outcomes, load_key
    from kvtrace.outcomes.collected_text import collected_text
    from kvtrace.outcomes.source import Choices, parse_source

    check_absent(output, force=force)
    choices = Choices(metric, filter_name, partial)
    found = collect_outcomes([parse_source(one, choices) for one in files], output, load_key(key))
    say(collected_text(found))
