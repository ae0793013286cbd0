"""Shares of values and of vectors per head, workload and position, with intervals by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from kvtrace.report.html.axes import PHASES, TENSORS, Axes, floats, index_in
from kvtrace.stats.fractions import RequestSums, fraction_intervals

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

HEAD_METRICS: Final = (
    "out_of_range_frac",
    "clipped_frac",
    "flushed_frac",
    "clip_error_frac",
    "sqnr_db",
    "max_abs",
)
EVENTS: Final = ("out_of_range", "clipped")


def head_strata(
    table: pa.Table, axes: Axes
) -> tuple[
    dict[str, NDArray[np.float64]],
    dict[str, NDArray[np.float64]],
    dict[str, NDArray[np.float64]],
    dict[str, NDArray[np.int64]],
]:
    """Return `ChartData`'s by_head, by_workload, by_position and num_requests of head_strata's rows."""
    C, H, W, S = len(axes.candidates), len(axes.heads), len(axes.workloads), len(axes.strata)
    candidate = index_in(table["candidate"], axes.candidates)
    tensor = index_in(table["tensor"], TENSORS)
    head = axes.head(table)
    workload = index_in(table["workload"], axes.workloads)
    phase = index_in(table["phase"], PHASES)
    octave = pc.fill_null(table["position_octave"], -1).to_numpy()
    stratum_of = {(PHASES.index(name), number): i for i, (name, number) in enumerate(axes.strata)}
    pairs = zip(phase.tolist(), octave.tolist(), strict=True)
    stratum = np.array([stratum_of.get(pair, -1) for pair in pairs], dtype=np.int64)
    positioned = (phase >= 0) & (stratum >= 0)
    # By what is absent: a run from elsewhere may name a phase that there is not, which is no chart's.
    whole = pc.and_(pc.is_null(table["phase"]), pc.is_null(table["workload"])).to_numpy()
    labelled = workload >= 0
    measured = {name: floats(table[name]) for name in HEAD_METRICS} | _vector_shares(table)
    measured["energy_lost"] = _energy_lost(measured)
    head_names = (*HEAD_METRICS, "energy_lost", *(f"vectors_{event}" for event in EVENTS))
    requests = floats(table["num_requests"])

    def placed(shape: tuple[int, ...], rows: NDArray[np.bool_], *index: NDArray[np.int64]) -> Any:
        places = tuple(one[rows] for one in index)

        def array(values: NDArray[np.float64]) -> NDArray[np.float64]:
            out = np.full(shape, np.nan)
            out[places] = values[rows]
            return out

        return array

    at_head = placed((C, 2, H), whole, candidate, tensor, head)
    at_workload = placed((C, 2, H, W), labelled, candidate, tensor, head, workload)
    at_position = placed((C, 2, H + 1, S), positioned, candidate, tensor, head, stratum)
    position_names = [name for name in measured if name.startswith("vectors_")] + ["sqnr_db"]
    counted = {
        "by_head": placed((H,), whole, head),
        "by_workload": placed((H, W), labelled, head, workload),
        "by_position": placed((H + 1, S), positioned, head, stratum),
    }
    return (
        {name: at_head(measured[name]) for name in head_names},
        {name: at_workload(measured[name]) for name in head_names},
        {name: at_position(measured[name]) for name in position_names},
        {name: np.nan_to_num(array(requests)).astype(np.int64) for name, array in counted.items()},
    )


def _energy_lost(measured: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the share of the signal's energy that clipping costs; 0 where nothing is lost at all."""
    lost = measured["clip_error_frac"] * 10 ** (-measured["sqnr_db"] / 10)
    return np.where(measured["clipped_frac"] == 0, 0.0, lost)


def _vector_shares(table: pa.Table) -> dict[str, NDArray[np.float64]]:
    """Return the share of vectors and its interval by requests, for both events."""
    columns = {
        name: np.nan_to_num(floats(table[name]))  # NULL: no request
        for name in table.column_names
        if name.startswith(("num_requests", "num_affected_", "sum_", "max_request_"))
    }
    shares = {}
    for event in EVENTS:
        sums = RequestSums.of(columns, event)
        low, high = _intervals(sums)
        shares[f"vectors_{event}"] = sums.fraction
        shares[f"vectors_{event}_low"] = low
        shares[f"vectors_{event}_high"] = high
    return shares


def _intervals(sums: RequestSums) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return low and high. Strata without an event differ in their sizes alone: equal ones are done once."""
    size = sums.num_requests * 2.0**40 + sums.sum_trials + 1j * sums.sum_trials_sq
    eventless = np.flatnonzero(sums.sum_events <= 0)
    _, first, again = np.unique(size[eventless], return_index=True, return_inverse=True)
    chosen = np.concatenate([np.flatnonzero(~(sums.sum_events <= 0)), eventless[first]])
    some = RequestSums(**{name: getattr(sums, name)[chosen] for name in RequestSums.__slots__})
    intervals = fraction_intervals(some)
    low, high = np.zeros(size.shape), np.ones(size.shape)
    low[chosen], high[chosen] = intervals.low, intervals.high
    high[eventless] = intervals.high[len(chosen) - len(first) :][again]
    return low, high
