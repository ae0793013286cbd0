"""Clipped vectors against another candidate, segment by segment: where is the difference real?"""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from typing import TYPE_CHECKING, Final

from kvtrace.gate.comparison import PairedSegment
from kvtrace.gate.measure import select_rows
from kvtrace.gate.policy import Coverage, Limits, Policy, Segment
from kvtrace.stats.paired import paired_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from kvtrace.gate.segments import ProtectedSegment

    RequestKey = tuple[str, int]
    Counts = Mapping[tuple[int, str], Mapping[RequestKey, tuple[float, float]]]
    """(segment, tensor) → (source, request) → clipped vectors and vectors, weighted."""

EVERY_WORKLOAD: Final = Policy(
    name="each workload",
    date=date.min,
    limits=Limits(vectors_clipped_frac=1.0),
    coverage=Coverage(requests=1, tokens=1),
    segments=(Segment(name="all"),),
)
"""What is compared apart where no policy names its segments. It decides nothing."""

_COUNTS: Final = """
SELECT stratum AS segment, tensor, source, request, sum(n) AS n, sum(clipped) AS x
FROM request_vectors(gate_rows)
WHERE candidate = $candidate AND n > 0
GROUP BY ALL
ORDER BY segment, tensor, source, request
"""


def segment_counts(
    connection: duckdb.DuckDBPyConnection, candidate: str, segments: Sequence[ProtectedSegment]
) -> Counts:
    """Return the counts of one valid candidate; connection: with the views and measures of queries/."""
    select_rows(connection, candidate, segments)
    found: dict[tuple[int, str], dict[RequestKey, tuple[float, float]]] = defaultdict(dict)
    for segment, tensor, source, request, n, x in connection.execute(
        _COUNTS, {"candidate": candidate}
    ).fetchall():
        found[segment, tensor][source, request] = (x, n)
    return found


def paired_segments(
    counts: Counts,
    rival: Counts,
    segments: Sequence[ProtectedSegment],
    tensor: str,
    *,
    nested: bool,
    confidence: float,
) -> tuple[PairedSegment, ...]:
    """Return the difference in every segment that has rows; `rival` must hold the same vectors."""
    pairs = []
    for index, segment in enumerate(segments):
        here = counts.get((index, tensor), {})
        there = rival.get((index, tensor), {})
        if not here:
            continue
        found = paired_difference(
            [x for x, _ in here.values()],
            [there[request][0] for request in here],
            [n for _, n in here.values()],
            nested=nested,
            confidence=confidence,
        )
        pairs.append(
            PairedSegment(
                name=segment.name,
                difference=found.difference,
                low=found.low,
                high=found.high,
                verdict=found.verdict,
                num_requests=found.num_requests,
                num_lower=found.num_lower,
                num_higher=found.num_higher,
            )
        )
    return tuple(pairs)
