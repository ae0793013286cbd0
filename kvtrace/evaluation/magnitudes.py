"""How often each magnitude occurs in a trace, over all layers and heads: quantiles of single values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.runs.schema import MAGNITUDES

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.runs.write import RunWriter
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.format import StoredDtype

_NUM_CODES = 1 << 15


def write_magnitudes(run: RunWriter, source: str, profile: StoredProfile, cells: Cells) -> None:
    """Write how often each finite magnitude occurs, by workload and sampling_id. cells: the profile's."""
    of_cell = list(zip(cells.workload, cells.sampling_id.tolist(), strict=True))
    strata = sorted(set(of_cell))
    stratum = np.array([strata.index(one) for one in of_cell])
    totals: dict[tuple[str, StoredDtype], NDArray[np.float64]] = {}
    for tensor in profile.tensors():
        key = tensor.record.tensor, tensor.record.dtype
        totals[key] = totals.get(key, 0.0) + _counts(tensor, stratum, len(strata))
    for (name, dtype), counts in sorted(totals.items()):
        _write(run, source, name, dtype, strata, counts)


def _counts(tensor: TensorProfile, stratum: NDArray[np.int64], num_strata: int) -> NDArray[np.float64]:
    """Return [stratum, code], over all heads; float64, exact up to 2^53."""
    of_segment = np.tile(stratum, len(tensor.record.kv_heads)) * _NUM_CODES
    key = np.repeat(of_segment, np.diff(tensor.start)) + tensor.code
    counts: NDArray[Any] = np.bincount(key, tensor.count, num_strata * _NUM_CODES)
    return counts.reshape(num_strata, _NUM_CODES)


def _write(
    run: RunWriter,
    source: str,
    tensor: str,
    dtype: StoredDtype,
    strata: list[tuple[str, int]],
    counts: NDArray[np.float64],
) -> None:
    stratum, code = np.nonzero(counts[:, : MAX_FINITE_CODE[dtype] + 1])
    rows: dict[str, Any] = {
        "source": [source] * len(code),
        "tensor": [tensor] * len(code),
        "workload": pa.array([workload for workload, _ in strata]).take(pa.array(stratum)),
        "sampling_id": np.array([number for _, number in strata])[stratum],
        "magnitude": magnitudes_of(code, dtype),
        "num_values": counts[stratum, code].astype(np.int64),
    }
    run.write(MAGNITUDES, rows)
