"""What a run holds of each protected segment: coverage, and the sums of every head, in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.errors import IntegrityError
from kvtrace.stats.fractions import RequestSums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.gate.contenders import Contender
    from kvtrace.gate.segments import ProtectedSegment
    from kvtrace.query import RunConnection

_NUM_GROUPS: Final = 16
"""Of requests, in the tables of a run."""
_SEGMENT_ROWS: Final = """
CREATE OR REPLACE TEMP TABLE gate_rows AS
SELECT tokens.*, segment AS stratum
FROM tokens
  SEMI JOIN (FROM candidate_sources WHERE candidate = $candidate) USING (source)
  JOIN gate_segments AS s ON tokens.workload = s.workload AND is_asked(s.phase, tokens.phase)
    AND position >= s.position_from AND position < s.position_to
    AND prompt_tokens >= s.prompt_from AND prompt_tokens < s.prompt_to
    AND output_tokens >= s.output_from AND output_tokens < s.output_to
"""

_COVERAGE: Final = """
SELECT stratum, num_requests, num_tokens, num_incomplete_requests, [first_position, last_position],
  [min_prompt_tokens, max_prompt_tokens], [min_output_tokens, max_output_tokens]
FROM coverage(gate_rows)
"""

_VECTOR_SUMS: Final = """
WITH requests AS (
  SELECT * REPLACE ({'segment': stratum, 'layer': layer, 'kv_head': kv_head} AS stratum)
  FROM request_vectors(gate_rows)
  WHERE candidate = $candidate AND is_quantized
)
SELECT unnest(stratum), * EXCLUDE (stratum)
FROM request_columns(requests)
ORDER BY stratum, tensor
"""

_VALUE_SUMS: Final = """
WITH strata AS (
  SELECT cells.* REPLACE (segment AS stratum)
  FROM scaled_cells AS cells JOIN gate_segments AS s ON cells.workload = s.workload AND s.whole_octaves
    AND is_asked(s.phase, cells.phase)
    AND octave_from(position_octave) >= s.position_from AND octave_to(position_octave) < s.position_to
  WHERE is_quantized
)
SELECT stratum AS segment, layer, kv_head, tensor, COLUMNS('^w_')
FROM value_sums(strata)
WHERE candidate = $candidate
ORDER BY segment, layer, kv_head, tensor
"""

_GROUP_SUMS: Final = """
WITH strata AS (
  SELECT groups.* REPLACE ({'segment': segment, 'layer': layer, 'kv_head': kv_head} AS stratum)
  FROM chosen_groups AS groups
    SEMI JOIN (FROM scales WHERE is_quantized) USING (source, candidate, layer, kv_head, tensor)
    JOIN gate_segments AS s ON groups.workload = s.workload AND s.whole_octaves AND s.any_position
      AND is_asked(s.phase, groups.phase)
)
SELECT stratum.segment, stratum.layer, stratum.kv_head, tensor, request_group, COLUMNS('^w_')
FROM group_sums(strata)
WHERE candidate = $candidate
ORDER BY stratum, tensor, request_group
"""

_QUANTIZED_HEADS: Final = """
SELECT stratum, count(DISTINCT (layer, kv_head, tensor))
FROM scales JOIN (SELECT DISTINCT stratum, source FROM gate_rows) USING (source)
WHERE candidate = $candidate AND is_quantized
GROUP BY stratum
"""

_HAS_RANGE: Final = "FROM scales WHERE candidate = $candidate AND max_unclipped_code IS NOT NULL LIMIT 1"
_ANY: Final = (0, 2**62)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a segment was captured. Ranges are inclusive."""

    num_requests: int = 0
    num_tokens: int = 0
    num_incomplete_requests: int = 0
    """Requests that lost rows to a budget or a fault."""
    seen_positions: tuple[int, int] | None = None
    seen_prompt_tokens: tuple[int, int] | None = None
    seen_output_tokens: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class HeadTable:
    """Columns of sums, one entry per quantized (layer, kv_head, tensor) of a segment."""

    columns: dict[str, NDArray[Any]]
    groups: dict[str, NDArray[np.float64]] | None = None
    """The value-level sums as [head, request group]; None where the run has none for the segment."""
    is_online: bool = False
    """Vectors are coded one by one, and no run has groups."""
    never_clips: bool = False
    """Every vector gets a scale of its own that covers it: nothing is out of range or clipped."""

    def __len__(self) -> int:
        return len(self.columns["layer"])

    def head(self, entry: int) -> tuple[int, int, str]:
        """Return layer, KV head and tensor of one entry."""
        return (
            int(self.columns["layer"][entry]),
            int(self.columns["kv_head"][entry]),
            str(self.columns["tensor"][entry]),
        )

    def request_sums(self, event: str) -> RequestSums:
        """Return the sums of `clipped` or `out_of_range` vectors."""
        return RequestSums.of(self.columns, event)


@dataclass(frozen=True, slots=True)
class MeasuredSegment:
    """One protected segment as the run holds it."""

    extent: Extent
    num_quantized: int
    """Quantized heads, K and V apart; more than `vectors` holds where rows of a rank are missing."""
    vectors: HeadTable
    values: HeadTable


def select_rows(connection: RunConnection, candidate: str, segments: Sequence[ProtectedSegment]) -> None:
    """Make the tables `gate_segments`, and `gate_rows`: which captured rows lie in which segment.

    Traces in which the candidate does not exist are left out.
    """
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE gate_segments (segment INTEGER, workload VARCHAR, phase VARCHAR, "
        "position_from BIGINT, position_to BIGINT, prompt_from BIGINT, prompt_to BIGINT, "
        "output_from BIGINT, output_to BIGINT, whole_octaves BOOLEAN, any_position BOOLEAN)"
    )
    rows = [
        (
            index,
            one.workload,
            one.phase,
            *(one.positions or _ANY),
            *(one.prompt_tokens or _ANY),
            *(one.output_tokens or _ANY),
            one.prompt_tokens is None and one.output_tokens is None,
            one.positions is None,
        )
        for index, one in enumerate(segments)
    ]
    if rows:
        connection.executemany("INSERT INTO gate_segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute(_SEGMENT_ROWS, {"candidate": candidate})


def workloads_of(connection: RunConnection) -> set[str]:
    """Return the workloads of a run."""
    return {row[0] for row in connection.execute("SELECT DISTINCT workload FROM requests").fetchall()}


def measure(
    connection: RunConnection, chosen: Contender, segments: Sequence[ProtectedSegment]
) -> list[MeasuredSegment]:
    """Return coverage and sums of each segment under a candidate, in order.

    connection: to the run, with the views and measures of queries/. Heads that the candidate leaves
    unquantized are left out: nothing of theirs can leave a range. So are traces in which it does not exist,
    such as `effective` in a trace of an unquantized cache. Sums are weighted by what the rows were sampled
    from.
    """
    candidate = chosen.candidate
    select_rows(connection, candidate, segments)
    extents = {row[0]: Extent(*row[1:]) for row in connection.execute(_COVERAGE).fetchall()}
    has_range = bool(connection.execute(_HAS_RANGE, {"candidate": candidate}).fetchall())
    quantized = dict(connection.execute(_QUANTIZED_HEADS, {"candidate": candidate}).fetchall())

    def tables(sql: str) -> list[HeadTable]:
        columns = connection.execute(sql, {"candidate": candidate}).fetchnumpy()
        arrays = {name: np.ma.filled(np.ma.asarray(values), 0) for name, values in columns.items()}
        bounds = np.searchsorted(arrays["segment"], np.arange(len(segments) + 1))
        return [
            HeadTable(
                {name: values[start:stop] for name, values in arrays.items()},
                is_online=chosen.kind in ("online", "format"),
                never_clips=chosen.kind == "online" and not has_range,
            )
            for start, stop in pairwise(bounds)
        ]

    vectors, values, groups = map(tables, (_VECTOR_SUMS, _VALUE_SUMS, _GROUP_SUMS))
    return [
        MeasuredSegment(
            extents.get(index, Extent()),
            quantized.get(index, 0),
            vectors[index],
            replace(values[index], groups=_by_group(values[index], groups[index])),
        )
        for index in range(len(segments))
    ]


def _by_group(heads: HeadTable, groups: HeadTable) -> dict[str, NDArray[np.float64]] | None:
    """Return the sums of `groups`, one row a head and request group, as [head, request group] of `heads`.

    Raises IntegrityError: the run's tables name other heads, or a group that there is not.
    """
    if not len(groups):
        return None
    place = {heads.head(entry): entry for entry in range(len(heads))}
    row = np.array([place.get(groups.head(entry), -1) for entry in range(len(groups))])
    column = groups.columns["request_group"]
    if row.min() < 0 or not np.isin(column, range(_NUM_GROUPS)).all():
        raise IntegrityError(
            "groups.parquet of the run: has a head that cells.parquet has not in this segment, or a group "
            f"outside 0 to {_NUM_GROUPS - 1}. Run kvtrace replay again"
        )
    sums = {}
    for name in (name for name in groups.columns if name.startswith("w_")):
        sums[name] = np.zeros((len(heads), int(column.max()) + 1))
        sums[name][row, column] = groups.columns[name]
    return sums
