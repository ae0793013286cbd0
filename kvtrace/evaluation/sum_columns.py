"""From sums to the columns of a run's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kvtrace.evaluation.sums import CellSums
from kvtrace.evaluation.sweep import LOG2_MULTIPLES
from kvtrace.numerics.captured import magnitudes_of
from kvtrace.numerics.formats import find_format
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.evaluation.magnitudes import MagnitudeCounts
    from kvtrace.evaluation.ordinary import OrdinaryChannels
    from kvtrace.evaluation.sums import TensorSums, Vectors
    from kvtrace.evaluation.sweep import SweepSums


def cell_columns(source: str, one: CellSums) -> dict[str, Any]:
    """Return one layer's sums, K or V, by cell: a row per candidate, cell and head that has vectors."""
    rows = _SumRows(source, one)
    values = one.sums.values
    return {
        **rows.columns(),
        "position_octave": rows.of_cells(one.cells.octave),
        "num_nonfinite": rows.of_values(values.num_nonfinite),
        "max_abs": rows.max_abs(),
    }


def group_columns(source: str, one: CellSums) -> dict[str, Any]:
    """Return the same by group of requests. cells: those of `find_group_cells`."""
    assert one.cells.request_group is not None, "the replay was over groups"
    rows = _SumRows(source, one)
    return {**rows.columns(), "request_group": rows.of_cells(one.cells.request_group)}


class _SumRows:
    """One layer's sums, K or V, as rows: candidate by candidate, the (cell, kv_head) that have vectors."""

    def __init__(self, source: str, one: CellSums) -> None:
        self._source, self._cells, self._names, self._sums = source, one.cells, one.candidates, one.sums
        self._without_range = one.without_range
        self._cell, self._head = np.nonzero(one.sums.values.num_vectors)

    def of_cells(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.tile(array[self._cell], len(self._names))

    def of_values(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.tile(array[self._cell, self._head], len(self._names))

    def max_abs(self) -> pa.Array:
        """Return the largest finite magnitudes; NULL where there is none."""
        max_code = self._sums.values.max_code
        values = magnitudes_of(max_code.clip(min=0), self._sums.dtype).astype(np.float64)
        return pa.array(self.of_values(values), mask=self.of_values(max_code) < 0)

    def _of_errors(self, name: str) -> NDArray[Any]:
        errors: NDArray[Any] = getattr(self._sums.errors, name)[:, self._cell, self._head].reshape(-1)
        return errors

    def columns(self) -> dict[str, Any]:
        cells, names, sums = self._cells, self._names, self._sums
        rows, repeats = len(names) * len(self._cell), len(names)
        is_absent = np.repeat([name in self._without_range for name in names], len(self._cell))
        return {
            "source": repeated(self._source, rows),
            "candidate": chosen(names, np.repeat(np.arange(repeats), len(self._cell))),
            "layer": np.full(rows, sums.layer),
            "kv_head": np.tile(np.array(sums.kv_heads)[self._head], repeats),
            "tensor": repeated(sums.tensor, rows),
            "workload": chosen(cells.workload, np.tile(self._cell, repeats)),
            "phase": chosen(PHASES, self.of_cells(cells.phase)),
            "sampling_id": self.of_cells(cells.sampling_id),
            **{name: self.of_values(getattr(sums.values, name)) for name in _VALUE_COLUMNS},
            **{name: self._of_errors(name) for name in _ERROR_COLUMNS},
            **{name: pa.array(self._of_errors(name), mask=is_absent) for name in _RANGE_COLUMNS},
        }


_VALUE_COLUMNS: Final = ("num_vectors", "num_values", "sum_sq_signal")
_ERROR_COLUMNS: Final = ("num_flushed", "sum_sq_error")
_RANGE_COLUMNS: Final = ("num_out_of_range", "num_clipped", "sum_sq_clip_error")
"""Absent where nothing can be out of range."""


def ordinary_columns(source: str, one: OrdinaryChannels) -> dict[str, Any]:
    """Return one layer's sums over ordinary channels: a row per candidate, stratum and head with vectors."""
    ordinary, sums = one.ordinary, one.ordinary.sums
    names = tuple(one.candidates[number] for number in ordinary.numbers)
    rows = _SumRows(source, CellSums(ordinary.strata, names, sums))
    channels = np.broadcast_to(ordinary.channel_count, sums.values.num_vectors.shape)
    return {**rows.columns(), "channel_count": rows.of_values(channels), "max_abs": rows.max_abs()}


def vector_columns(source: str, vectors: Vectors) -> dict[str, Any]:
    """Return some vectors of one layer, K or V, head by head."""
    num_rows, num_heads = vectors.absmax_code.shape
    codes = vectors.absmax_code.T.reshape(-1)
    return {
        "source": repeated(source, len(codes)),
        "row": np.tile(vectors.row, num_heads),
        "layer": np.full(len(codes), vectors.layer),
        "kv_head": np.repeat(np.array(vectors.kv_heads), num_rows),
        "tensor": repeated(vectors.tensor, len(codes)),
        "absmax_code": pa.array(codes, mask=codes < 0),
        "has_nonfinite": vectors.has_nonfinite.T.reshape(-1),
    }


def magnitude_columns(source: str, one: MagnitudeCounts) -> dict[str, Any]:
    """Return the magnitudes that occur, by stratum."""
    stratum, code = np.nonzero(one.counts)
    return {
        "source": repeated(source, len(code)),
        "tensor": repeated(one.tensor, len(code)),
        "workload": chosen([workload for workload, _ in one.strata], stratum),
        "sampling_id": np.array([number for _, number in one.strata])[stratum],
        "magnitude": magnitudes_of(code, one.dtype),
        "num_values": one.counts[stratum, code].astype(np.int64),
    }


def sweep_columns(source: str, sweep: SweepSums) -> dict[str, Any]:
    """Return every layer, K and V, together: few rows, and a write costs as much as a hundred of them."""
    tables = [_swept(source, sweep, sums, scale) for sums, scale in sweep.tensors]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _swept(
    source: str, sweep: SweepSums, sums: TensorSums, scale: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    step, head = np.nonzero(scale > 0)
    values, errors, count = sums.values, sums.errors, len(step)
    covered = scale * np.float32(find_format(sweep.format).max_value)
    return {
        "source": np.full(count, source, object),
        "engine": np.full(count, sweep.engine, object),
        "format": np.full(count, sweep.format, object),
        "layer": np.full(count, sums.layer),
        "kv_head": np.array(sums.kv_heads)[head],
        "tensor": np.full(count, sums.tensor, object),
        "log2_multiple": np.array(LOG2_MULTIPLES)[step],
        "scale": scale[step, head],
        "covered_amax": covered[step, head],
        **{name: getattr(values, name)[0, head] for name in ("num_values", "sum_sq_signal")},
        **{name: getattr(errors, name)[step, 0, head] for name in _SWEPT_COLUMNS},
    }


_SWEPT_COLUMNS: Final = ("num_clipped", "num_flushed", "sum_sq_error", "sum_sq_clip_error")


def repeated(text: str, count: int) -> pa.Array:
    """Return a column of one text."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def chosen(texts: Sequence[str], index: NDArray[Any]) -> pa.Array:
    """Return a column of texts[i] for each i of `index`."""
    return pa.array(list(texts), pa.string()).take(pa.array(index))
