"""From sums over queries to the columns of a run's tables on attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.evaluation.sum_columns import chosen, repeated
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.evaluation.attended import AttentionSums

_RENAMED: Final = {"top_overlap": "sum_top_overlap"}


def head_columns(source: str, one: AttentionSums) -> dict[str, Any]:
    """Return one request's errors in one layer: a row per candidate, place and query head."""
    layer, heads = one.layer, len(one.layer.query_heads)
    rows = _Rows(source, one, heads)
    kv_heads = [layer.kv_heads[place] for place in layer.kv_head_of]
    return {
        **rows.columns(),
        "query_head": rows.of_heads(np.array(layer.query_heads)),
        "kv_head": rows.of_heads(np.array(kv_heads)),
        "sum_o2": np.tile(one.sum_o2.reshape(-1), len(one.candidates)),
        **{
            _RENAMED.get(name, name): values.reshape(-1).astype(np.int32 if name == "num_flips" else float)
            for name, values in one.sums.items()
        },
    }


def layer_columns(source: str, one: AttentionSums) -> dict[str, Any]:
    """Return the same through W_O: a row per candidate and place."""
    assert one.projected is not None
    assert one.projected_output is not None, "both are there or none"
    return {
        **_Rows(source, one, 1).columns(),
        "projected_o2": np.tile(one.projected_output, len(one.candidates)),
        "projected_do2": one.projected.reshape(-1),
    }


class _Rows:
    """Rows candidate by candidate, place by place, so many a place."""

    def __init__(self, source: str, one: AttentionSums, a_place: int) -> None:
        self._source, self._one, self._a_place = source, one, a_place
        self._num_rows = len(one.candidates) * len(one.num_probes) * a_place

    def of_places(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.tile(np.repeat(values, self._a_place), len(self._one.candidates))

    def of_heads(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.tile(values, self._num_rows // self._a_place)

    def columns(self) -> dict[str, Any]:
        one, rows = self._one, self._num_rows
        return {
            "source": repeated(self._source, rows),
            "candidate": chosen(
                one.candidates, np.repeat(np.arange(len(one.candidates)), rows // len(one.candidates))
            ),
            "layer": np.full(rows, one.layer.index),
            "request": np.full(rows, one.request),
            "phase": chosen(PHASES, self.of_places(one.phase)),
            "position_octave": self.of_places(one.position_octave),
            "step_octave": self.of_places(one.step_octave),
            "is_dense": np.full(rows, one.is_dense),
            "num_probes": self.of_places(one.num_probes),
        }
