"""Half-open ranges of positions. Nothing here imports vllm or torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def joined(ranges: Iterable[tuple[int, int]], new: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the union of disjoint half-open ranges and one more, in order.

    >>> joined([(0, 4), (8, 9)], (4, 8)), joined([(5, 7)], (0, 2))
    ([(0, 9)], [(0, 2), (5, 7)])
    """
    start, end = new
    apart = []
    for other in ranges:
        if other[1] < start or other[0] > end:
            apart.append(other)
        else:
            start, end = min(start, other[0]), max(end, other[1])
    return sorted([*apart, (start, end)])


def gaps(ranges: Iterable[tuple[int, int]], end: int) -> tuple[tuple[int, int], ...]:
    """Return the half-open ranges of [0, end) that none of the disjoint, ordered ranges covers.

    >>> gaps([(16, 20), (24, 40)], 30), gaps([(0, 4)], 6)
    (((0, 16), (20, 24)), ((4, 6),))
    """
    gaps, at = [], 0
    for start, stop in ranges:
        if start > at:
            gaps.append((at, min(start, end)))
        at = max(at, stop)
    return tuple(gap for gap in (*gaps, (at, end)) if gap[0] < end)
