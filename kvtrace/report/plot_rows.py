"""The rows of the charts that `plots.py` draws, for one candidate; the page's are made by rows.js."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.report.bins import bin_of
from kvtrace.report.html.axes import PHASES, TENSORS
from kvtrace.report.html.page import axis_start, calibrated_rule
from kvtrace.stats.fractions import MIN_REQUESTS

if TYPE_CHECKING:
    from kvtrace.report.html.tables import ChartData

Rows = list[dict[str, Any]]


def heat_map_rows(data: ChartData, candidate: int, tensor: int) -> dict[str, Rows]:
    """Return the clipped share of every head of K (tensor 0) or V (1)."""
    values = data.by_head["clipped_frac"][candidate, tensor]
    few = data.num_requests["by_head"] < MIN_REQUESTS
    cells = [
        {
            "layer": layer,
            "kv_head": kv_head,
            "letter": bin_of(float(np.nan_to_num(values[head]))).letter,
            "label": "",
            "is_few": bool(few[head]),
            "text": "",
        }
        for head, (layer, kv_head) in enumerate(data.heads)
    ]
    return {"cells": cells, "chosen": []}


def position_rows(data: ChartData, candidate: int, name: str, floor: float | None) -> dict[str, Rows]:
    """Return all heads of K and of V by position: a share, or SQNR where `floor` is None."""
    pooled = len(data.heads)
    requests = data.num_requests["by_position"][pooled]
    rows = []
    for tensor, label in enumerate(TENSORS):
        for stratum, (phase, octave) in enumerate(data.strata):
            value = data.by_position[name][candidate, tensor, pooled, stratum]
            if not np.isfinite(value):
                continue
            row: dict[str, Any] = {
                "position": axis_start(octave),
                "order": octave,
                "tensor": label.upper(),
                "phase": phase,
                "series": f"{label.upper()} {phase}",
                "value": float(value) if floor is None else max(float(value), floor),
                "shown_low": None,
                "shown_high": None,
                "text": "",
            }
            if floor is not None and requests[stratum] >= MIN_REQUESTS:
                ends = (data.by_position[f"{name}_{end}"] for end in ("low", "high"))
                low, high = (float(end[candidate, tensor, pooled, stratum]) for end in ends)
                row |= {"shown_low": max(low, floor), "shown_high": max(high, floor)}
            rows.append(row)
    return {
        "strata": sorted(rows, key=lambda row: (PHASES.index(row["phase"]), row["order"])),
        "calibrated": calibrated_rule(data.calibrated_max_length[candidate], data.octaves),
    }


def before_after_rows(
    data: ChartData, before: int, after: int, floor: float, low: float, high: float
) -> dict[str, Rows]:
    """Return the clipped share of every head under both candidates."""
    shares = data.by_head["clipped_frac"]
    rows = [
        {
            "before": max(float(shares[before, tensor, head]), floor),
            "after": max(float(shares[after, tensor, head]), floor),
            "tensor": label.upper(),
            "is_worse": bool(shares[after, tensor, head] > shares[before, tensor, head]),
            "is_chosen": False,
            "text": "",
        }
        for tensor, label in enumerate(TENSORS)
        for head in range(len(data.heads))
        if np.isfinite(shares[[before, after], tensor, head]).all()
    ]
    return {"heads": rows, "diagonal": [{"at": low}, {"at": high}]}


def band_rows(data: ChartData, candidate: int, tensor: int, head: int, workload: int) -> dict[str, Rows]:
    """Return one head's widest values by position in one workload, and what the candidate covers."""
    names = {"p50": "absmax_p50", "p90": "absmax_p90", "p99": "absmax_p99", "max": "absmax_max"}
    of_head = {short: data.bands[name][tensor, head] for short, name in names.items()}
    rows = []
    for place, octave in enumerate(data.octaves):
        values = {short: _number(array[workload, place]) for short, array in of_head.items()}
        if values["max"]:
            label = {"position": axis_start(octave), "order": octave, "tensor": TENSORS[tensor].upper()}
            rows.append(label | values | {"text": ""})
    covered = _number(data.covered_amax[candidate, tensor, head])
    ends = [
        float(np.nanmin(of_head["p50"])),
        float(np.nanmax(of_head["max"])),
        *([covered] if covered else []),
    ]
    return {
        "bands": rows,
        "covered": [{"amax": covered}] if covered else [],
        "extent": [{"low": min(ends) * 0.9, "high": max(ends) * 1.1}],
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
