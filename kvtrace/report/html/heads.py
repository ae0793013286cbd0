"""The section on heads, as far as it needs no script: its heading, and the heads that lose most as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.figures import decibel, percent, times
from kvtrace.report.answer.words import head_name
from kvtrace.report.html.answer import upper_first
from kvtrace.report.html.axes import TENSORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.report.answer.model import Answer
    from kvtrace.report.html.tables import ChartData

_LISTED: Final = 10


def heads_parts(answer: Answer, data: ChartData, page: dict[str, Any]) -> dict[str, Any]:
    """Return the template's `heads`."""
    return {
        "finding": _finding(answer, data),
        "tables": [
            {"name": one["name"], "label": one["label"], "rows": list(_rows(data, page, candidate))}
            for candidate, one in enumerate(page["candidates"])
        ],
    }


def range_used(data: ChartData) -> NDArray[np.float64]:
    """Return the largest magnitude of each head over the one its scale covers: [C, 2, H]."""
    return data.by_head["max_abs"] / data.covered_amax


def _finding(answer: Answer, data: ChartData) -> str:
    """Return the heading; `headsFinding` of controls.js says the same of what is chosen."""
    harmed = answer.most_harmed
    if harmed is None or answer.candidate not in data.candidates:
        return "Layer by layer, head by head"
    candidate = data.candidates.index(answer.candidate)
    loses = np.nanmax(data.by_head["energy_lost"][candidate]) > 0
    name = upper_first(head_name((harmed.layer, harmed.kv_head, harmed.tensor)))
    return f"{name} {'loses most to clipping' if loses else 'is closest to the edge'}"


def _rows(data: ChartData, page: dict[str, Any], candidate: int) -> Iterator[dict[str, Any]]:
    lost = np.nan_to_num(data.by_head["energy_lost"][candidate]).ravel()
    used = np.nan_to_num(range_used(data)[candidate]).ravel()
    for place in np.lexsort((-used, -lost))[:_LISTED].tolist():
        tensor, head = divmod(place, len(data.heads))
        layer, kv_head = data.heads[head]
        yield {
            "name": head_name((layer, kv_head, TENSORS[tensor])),
            "pick": f"{head} {tensor}",
            "lost": percent(lost[place]),
            "clipped": percent(float(data.by_head["clipped_frac"][candidate, tensor, head])),
            "used": times(used[place]),
            "sqnr": decibel(_known(data.by_head["sqnr_db"][candidate, tensor, head])),
            "positions": _most(data.by_position["vectors_clipped"][candidate, tensor, head], _strata(page)),
            "workload": _most(data.by_workload["energy_lost"][candidate, tensor, head], page["workloads"]),
        }


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _strata(page: dict[str, Any]) -> list[str]:
    return [f"{page['positions'][str(octave)]}, {phase}" for phase, _, octave in page["strata"]]


def _most(shares: NDArray[np.float64], names: list[str]) -> str:
    found = np.nan_to_num(shares)
    return names[int(found.argmax())] if found.size and found.max() > 0 else "–"
