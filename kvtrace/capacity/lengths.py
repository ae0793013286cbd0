"""How long the requests of a trace were: what a retained token costs is decided by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.trace.reader import Trace

_PLANNED: float = 0.95


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Requests that are planned for alike: a workload, or one length that the operator names."""

    name: str
    share: float
    """Of all requests."""
    planned_tokens: int
    """Prompt and output: the length that 95 % of the class do not exceed."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of requests, in tokens of prompt and output."""

    classes: tuple[LengthClass, ...]
    counts: Mapping[int, int]
    """Length → requests that had it; empty where only a plan is given."""


def one_length(num_tokens: int) -> Lengths:
    """Return a plan in which every request has the same length."""
    return Lengths((LengthClass("planned", 1.0, num_tokens),), {})


def lengths_of(trace: Trace) -> Lengths:
    """Return the lengths of a trace's finished requests, a class for each workload.

    Raises InputError: none of them finished.
    """
    by_workload: dict[str, list[int]] = {}
    for request in trace.requests.values():
        length = request.prompt_tokens + request.output_tokens
        if request.status != "running" and length:
            by_workload.setdefault(request.workload, []).append(length)
    total = sum(len(lengths) for lengths in by_workload.values())
    if not total:
        raise InputError(f"{trace.path}: no request finished, so that their lengths are not known")
    counts: dict[int, int] = {}
    for lengths in by_workload.values():
        for length in lengths:
            counts[length] = counts.get(length, 0) + 1
    classes = tuple(
        LengthClass(workload, len(lengths) / total, _quantile(lengths))
        for workload, lengths in sorted(by_workload.items())
    )
    return Lengths(classes, dict(sorted(counts.items())))


def _quantile(lengths: list[int]) -> int:
    ordered = sorted(lengths)
    return ordered[max(0, -(-round(_PLANNED * 100) * len(ordered) // 100) - 1)]
