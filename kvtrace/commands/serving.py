"""`kvtrace serving`: files of load generators and scrapes of /metrics into one table."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated, Literal

import typer

from kvtrace.commands.options import FORCE, check_absent, say


def serving(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="VARIANT=FILE...",
            help="Own serving.jsonl, or a file of aiperf, GuideLLM, vllm bench serve or SGLang.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The table: a new file.")],
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIANT=FILE", help="Saved /metrics of that variant's server, repeatable."),
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(help="A table of kvtrace outcomes: who was right, by variant, id and repetition."),
    ] = None,
    manifest: Annotated[
        list[str] | None,
        typer.Option(metavar="VARIANT=FILE", help="What that variant was served with, repeatable."),
    ] = None,
    load: Annotated[
        Literal["open", "closed", "burst"] | None,
        typer.Option(help="How load was offered, where the file does not say."),
    ] = None,
    force: FORCE = False,
) -> None:
    """Read who was served when, run by run; no prompt and no answer is kept.

    What a file cannot give is absent, or its run is refused for goodput and the reason said.
    """
    from kvtrace.outcomes.table import read_outcomes
    from kvtrace.runs.manifest import load_manifest
    from kvtrace.serving.collect import Extras, collect_serving, collected_text
    from kvtrace.serving.source import parse_variant_file

    check_absent(output, force=force)
    supplied = [parse_variant_file(one) for one in manifest or ()]
    extras = Extras(
        load=load,
        outcomes=None if outcomes is None else read_outcomes(outcomes),
        metrics=[parse_variant_file(one) for one in metrics or ()],
        manifests={one.variant: load_manifest(one.path).manifest for one in supplied},
    )
    say(collected_text(collect_serving([parse_variant_file(one) for one in files], output, extras)))
