"""One file to read outcomes from, and how the command line says to read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvtrace.errors import OutcomesError


@dataclass(frozen=True, slots=True)
class Choices:
    """What files may leave open."""

    metric: str | None = None
    """Of lm-eval the metric, of Inspect the scorer that decides."""
    filter: str | None = None
    """Of lm-eval, where a task has several."""
    partial: Literal["pass", "fail"] | None = None
    """What Inspect's partial credit (P) counts as."""


@dataclass(frozen=True, slots=True)
class Source:
    """`VARIANT=FILE`, or FILE where the file itself says each answer's variant."""

    path: Path
    variant: str | None
    choices: Choices


def parse_source(argument: str, choices: Choices) -> Source:
    """Return the source that an argument means. A path with `=` in it is given as `VARIANT=PATH`.

    Raises OutcomesError: nothing stands before or after the `=`.

    >>> parse_source("bf16-a=runs/samples_x.jsonl", Choices()).variant
    'bf16-a'
    """
    variant, equals, path = argument.partition("=")
    if not equals:
        return Source(Path(argument), None, choices)
    if not variant.strip() or not path:
        raise OutcomesError(f"{argument}: expected VARIANT=FILE, such as bf16-a=samples_task.jsonl")
    return Source(Path(path), variant.strip(), choices)
