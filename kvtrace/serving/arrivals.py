"""A run's arrivals without anything of what was asked: times, classes and lengths."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvtrace.errors import OutcomesError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.serving.table import ServingTable


def arrival_lines(table: ServingTable, variant: str | None, repetition: int) -> Iterator[str]:
    """Yield one JSON line a measured request of a run, in the order of planned arrivals.

    Times are seconds from the first arrival, so that neither a date nor an id is in it. variant: None: the
    only one. Raises OutcomesError: there is no such run, or its requests have no planned arrival.
    """
    variants = list(dict.fromkeys(run.variant for run in table.runs))
    if variant is None and len(variants) > 1:
        raise OutcomesError(
            f"{table.path}: has runs of {', '.join(map(plain, variants))}; choose with --variant"
        )
    chosen = variant if variant is not None else variants[0]
    arrivals: list[tuple[int, str | None, int | None, int | None]] = []
    for run, rows in table.each_run():
        if (run.variant, run.repetition) != (chosen, repetition):
            continue
        arrivals = [
            (row.planned_us, row.workload, row.prompt_tokens, row.output_tokens)
            for row in rows
            if row.phase == "measured" and row.planned_us is not None
        ]
        if run.first_planned_us is None:
            raise OutcomesError(f"{table.path}: the requests of that run have no planned arrival")
        break
    else:
        raise OutcomesError(f"{table.path}: has no run {repetition} of {plain(chosen)}")
    arrivals.sort(key=lambda one: one[0])
    for planned, workload, prompt_tokens, output_tokens in arrivals:
        line = {
            "at_s": (planned - arrivals[0][0]) / 1_000_000,
            "class": workload,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
        }
        yield json.dumps({name: value for name, value in line.items() if value is not None}) + "\n"
