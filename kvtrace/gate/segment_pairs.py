"""Clipped vectors against another candidate, segment by segment: where is the difference real?"""

from __future__ import annotations

from datetime import date
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.gate.comparison import PairedSegment, of_difference
from kvtrace.gate.measure import select_rows
from kvtrace.gate.policy import Coverage, Limits, Policy, Segment
from kvtrace.stats.paired import paired_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace.gate.segments import ProtectedSegment
    from kvtrace.query import RunConnection

    Counts = Mapping[tuple[int, str], NDArray[np.float64]]
    """(segment, tensor) → [request, 2]: clipped vectors and vectors, weighted, by source and request."""

EVERY_WORKLOAD: Final = Policy(
    name="each workload",
    date=date.min,
    limits=Limits(vectors_clipped_frac=1.0),
    coverage=Coverage(requests=1, tokens=1),
    segments=(Segment(name="all"),),
)
"""What is compared apart where no policy names its segments. It decides nothing."""

_COUNTS: Final = """
SELECT stratum AS segment, tensor, sum(clipped) AS x, sum(n) AS n
FROM request_vectors(gate_rows)
WHERE candidate = $candidate AND n > 0
GROUP BY segment, tensor, source, request
ORDER BY segment, tensor, source, request
"""


def segment_counts(connection: RunConnection, candidate: str, segments: Sequence[ProtectedSegment]) -> Counts:
    """Return the counts of one valid candidate; connection: with the views and measures of queries/."""
    select_rows(connection, candidate, segments)
    rows = connection.execute(_COUNTS, {"candidate": candidate}).fetchall()
    return {key: np.array([row[2:] for row in own]) for key, own in groupby(rows, key=lambda row: row[:2])}


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
        if (index, tensor) in counts:
            clipped, trials = counts[index, tensor].T
            found = paired_difference(
                clipped, rival[index, tensor][:, 0], trials, nested=nested, confidence=confidence
            )
            pairs.append(PairedSegment(name=segment.name, **of_difference(found)))
    return tuple(pairs)
