"""The numbers of the chart over a range of scales: `clip_against_flush`, laid out as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from kvtrace.report.html.axes import TENSORS, Axes, floats, index_in

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

SHARES: Final = ("clipped_frac", "flushed_frac", "relative_error")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One trace's heads over a range of scales: tensor (2), head (H), scale."""

    source: str
    multiples: tuple[float, ...]
    """Of the scale that just covers the head, ascending."""
    amax: NDArray[np.float64]
    """[2, H]: what multiple 1 covers; NaN where nothing was swept."""
    shares: dict[str, NDArray[np.float64]]
    """Each of SHARES → [2, H, scale]."""


def sweep_arrays(table: pa.Table, axes: Axes) -> Sweep | None:
    """Return the first trace's sweep; None where no trace has one. Traces cannot be added up: each has its
    own scales.
    """
    if table.num_rows == 0:
        return None
    source = table["source"][0].as_py()
    table = table.filter(pc.equal(table["source"], source))
    steps, step = np.unique(table["log2_multiple"].to_numpy(), return_inverse=True)
    tensor, head = index_in(table["tensor"], TENSORS), axes.head(table)
    shares = {name: np.full((2, len(axes.heads), len(steps)), np.nan) for name in SHARES}
    for name, array in shares.items():
        array[tensor, head, step] = floats(table[name])
    amax = np.full((2, len(axes.heads)), np.nan)
    amax[tensor, head] = floats(table["covered_amax"]) / np.exp2(steps)[step]
    return Sweep(source, tuple(np.exp2(steps).tolist()), amax, shares)
