"""The segments that a policy protects, spelled out: one workload, one range of positions and lengths each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING

from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.gate.policy import Coverage, Limits, Policy, Segment

Range = tuple[int, int]
"""Half-open: from, up to but not including."""


@dataclass(frozen=True, slots=True)
class ProtectedSegment:
    """One segment to decide on. None means no restriction."""

    name: str
    workload: str
    phase: str | None
    positions: Range | None
    prompt_tokens: Range | None
    output_tokens: Range | None
    limits: Limits
    coverage: Coverage


def protected_segments(policy: Policy, workloads: Iterable[str]) -> tuple[ProtectedSegment, ...]:
    """Return every segment of the policy, workloads and ranges taken apart, in the policy's order.

    workloads: those of the run; a segment that names none protects each of them. One that is named and not in
    the run stays: it then has no coverage.
    """
    present = sorted(workloads)
    return tuple(one for segment in policy.segments for one in _spelled_out(segment, policy, present))


def describe_range(what: str, bounds: Range | None) -> str:
    """Return words for a range, or nothing.

    >>> describe_range("positions", (0, 2048))
    'positions 0 to 2,047'
    """
    return "" if bounds is None else f"{what} {bounds[0]:,} to {bounds[1] - 1:,}"


def _spelled_out(segment: Segment, policy: Policy, present: list[str]) -> Iterator[ProtectedSegment]:
    limits = segment.limits or policy.limits
    assert limits is not None, "the policy was validated"
    for workload, positions, prompt, output in product(
        segment.workloads or present,
        _ranges(segment.positions),
        _ranges(segment.prompt_tokens),
        _ranges(segment.output_tokens),
    ):
        parts = (
            plain(segment.name),
            plain(workload),
            segment.phase or "",
            describe_range("positions", positions),
            describe_range("prompt tokens", prompt),
            describe_range("output tokens", output),
        )
        yield ProtectedSegment(
            name=" · ".join(part for part in parts if part),
            workload=workload,
            phase=segment.phase,
            positions=positions,
            prompt_tokens=prompt,
            output_tokens=output,
            limits=limits,
            coverage=segment.coverage or policy.coverage,
        )


def _ranges(edges: tuple[int, ...] | None) -> list[Range | None]:
    return [None] if edges is None else list(pairwise(edges))
