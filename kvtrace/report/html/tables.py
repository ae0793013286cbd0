"""The numbers behind the charts: every one from a query of `queries/`, laid out as arrays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.query import connect_with_views, find_query, run_query_table
from kvtrace.report.html.axes import PHASES, TENSORS, Axes, floats, index_in
from kvtrace.report.html.strata import head_strata
from kvtrace.report.html.sweep import sweep_arrays
from kvtrace.report.shown import shown_candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from kvtrace.query import RunConnection
    from kvtrace.report.html.sweep import Sweep
    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run

BANDS: Final = ("absmax_p50", "absmax_p90", "absmax_p99", "absmax_max")
QUERIES: Final = (
    "head_strata",
    "absmax_bands",
    "clip_against_flush",
    "coverage",
    "scale_audit",
    "compare_candidates",
)


@dataclass(frozen=True, slots=True)
class ChartData(Axes):
    """Arrays over candidate (C), tensor (2), head (H), workload (W), position stratum (S) and octave (O)."""

    by_head: dict[str, NDArray[np.float64]]
    """Metric → [C, 2, H]; NaN: not measured."""
    by_workload: dict[str, NDArray[np.float64]]
    """Metric → [C, 2, H, W]."""
    by_position: dict[str, NDArray[np.float64]]
    """vectors_out_of_range, …_low, …_high, vectors_clipped, …, sqnr_db → [C, 2, H + 1, S]; H: all heads."""
    num_requests: dict[str, NDArray[np.int64]]
    """by_head [H], by_workload [H, W], by_position [H + 1, S]: requests behind the numbers."""
    bands: dict[str, NDArray[np.float64]]
    """Quantile → [2, H, W, O]."""
    sweep: Sweep | None
    """None: the replay made no counts."""
    calibrated_max_length: tuple[int | None, ...]
    """[C]: positions below this were calibrated on; None: not known."""
    covered_amax: NDArray[np.float64]
    """[C, 2, H]; the smallest over sources."""
    coverage: tuple[dict[str, Any], ...]
    audit: tuple[dict[str, Any], ...]


def chart_data(run: Run, report: Report) -> ChartData:
    """Return the arrays of all charts, of the candidates that the report shows.

    Raises QueryError: a file of the run cannot be read to its end.
    """
    connection = connect_with_views(run, candidates=report.shown)
    tables = _tables(connection)
    candidates = tuple(
        one.candidate for one in shown_candidates(report) if one.status == "valid" and one.kind != "bf16"
    )
    coverage = tables["coverage"].to_pylist()
    strata = _strata(coverage)
    axes = Axes(
        candidates=candidates,
        heads=_heads(*(tables[name] for name in ("head_strata", "clip_against_flush"))),
        workloads=tuple(dict.fromkeys(row["workload"] for row in coverage)),
        strata=strata,
        octaves=tuple(sorted({octave for _, octave in strata})),
    )
    by_head, by_workload, by_position, num_requests = head_strata(tables["head_strata"], axes)
    lengths = dict(connection.execute(_LENGTHS).fetchall())
    return ChartData(
        **{axis.name: getattr(axes, axis.name) for axis in fields(Axes)},
        by_head=by_head,
        by_workload=by_workload,
        by_position=by_position,
        num_requests=num_requests,
        bands=_bands(tables["absmax_bands"], axes),
        sweep=sweep_arrays(tables["clip_against_flush"], axes),
        calibrated_max_length=tuple(lengths[candidate] for candidate in candidates),
        covered_amax=_covered(connection.relation(_COVERED).to_arrow_table(), axes),
        coverage=tuple(coverage),
        audit=tuple(tables["scale_audit"].to_pylist()),
    )


def _tables(connection: RunConnection) -> dict[str, pa.Table]:
    """Return the rows of the queries by name; the longest is asked beside the others."""
    longest, *others = QUERIES[:5]
    with ThreadPoolExecutor(1, "kvtrace-charts") as beside:
        asking = beside.submit(run_query_table, connection.cursor(), find_query(longest))
        found = {name: run_query_table(connection, find_query(name)) for name in others}
        return found | {longest: asking.result()}


_COVERED: Final = """
SELECT candidate, layer, kv_head, tensor, covered_amax
FROM covered_heads
WHERE scale IS NOT NULL
ORDER BY candidate, layer, kv_head, tensor
"""
_LENGTHS: Final = "SELECT candidate, calibrated_max_length FROM candidates"


def _strata(coverage: Sequence[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    found = {(row["phase"], row["position_octave"]) for row in coverage if row["num_tokens"]}
    return tuple(sorted(found, key=lambda one: (PHASES.index(one[0]), one[1])))


def _heads(*tables: pa.Table) -> tuple[tuple[int, int], ...]:
    """Return the heads of which any table says something; a sweep has some where no candidate quantizes."""
    found: set[tuple[int, int]] = set()
    for table in tables:
        heads = table.select(["layer", "kv_head"]).drop_null().group_by(["layer", "kv_head"]).aggregate([])
        found.update(zip(*(column.to_pylist() for column in heads), strict=True))
    return tuple(sorted(found))


def _bands(table: pa.Table, axes: Axes) -> dict[str, NDArray[np.float64]]:
    shape = (2, len(axes.heads), len(axes.workloads), len(axes.octaves))
    index = np.stack(
        [
            index_in(table["tensor"], TENSORS),
            axes.head(table),
            index_in(table["workload"], axes.workloads),
            index_in(table["position_octave"], axes.octaves),
        ]
    )
    known = (index >= 0).all(axis=0)
    bands = {}
    for name in BANDS:
        bands[name] = np.full(shape, np.nan)
        bands[name][tuple(index[:, known])] = floats(table[name])[known]
    return bands


def _covered(table: pa.Table, axes: Axes) -> NDArray[np.float64]:
    covered = np.full((len(axes.candidates), 2, len(axes.heads)), np.nan)
    index = np.stack(
        [
            index_in(table["candidate"], axes.candidates),
            index_in(table["tensor"], TENSORS),
            axes.head(table),
        ]
    )
    known = (index >= 0).all(axis=0)
    covered[tuple(index[:, known])] = floats(table["covered_amax"])[known]
    return covered
