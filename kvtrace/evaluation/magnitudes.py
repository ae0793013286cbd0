"""How often each magnitude occurs in a trace, over all layers and heads: quantiles of single values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.numerics.captured import MAX_FINITE_CODE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.format import StoredDtype

_NUM_CODES = 1 << 15


@dataclass(frozen=True, slots=True)
class MagnitudeCounts:
    """How often each magnitude of one dtype occurs in K or V, NaN and inf left out."""

    tensor: str
    dtype: StoredDtype
    strata: tuple[tuple[str, int], ...]
    """(workload, sampling_id)."""
    counts: NDArray[np.float64]
    """[stratum, code]; exact up to 2^53."""


def magnitude_counts(profile: StoredProfile, cells: Cells) -> Iterator[MagnitudeCounts]:
    """Yield how often each finite magnitude occurs, by workload and sampling_id. cells: the profile's."""
    of_cell = list(zip(cells.workload, cells.sampling_id.tolist(), strict=True))
    strata = tuple(sorted(set(of_cell)))
    stratum = np.array([strata.index(one) for one in of_cell])
    totals: dict[tuple[str, StoredDtype], NDArray[np.float64]] = {}
    for tensor in profile.tensors():
        key = tensor.record.tensor, tensor.record.dtype
        totals[key] = totals.get(key, 0.0) + _counts(tensor, stratum, len(strata))
    for (name, dtype), counts in sorted(totals.items()):
        yield MagnitudeCounts(name, dtype, strata, counts[:, : MAX_FINITE_CODE[dtype] + 1])


def _counts(tensor: TensorProfile, stratum: NDArray[np.int64], num_strata: int) -> NDArray[np.float64]:
    """Return [stratum, code], over all heads; float64, exact up to 2^53."""
    of_segment = np.tile(stratum, len(tensor.record.kv_heads)) * _NUM_CODES
    key = np.repeat(of_segment, np.diff(tensor.start)) + tensor.code
    counts: NDArray[Any] = np.bincount(key, tensor.count, num_strata * _NUM_CODES)
    return counts.reshape(num_strata, _NUM_CODES)
