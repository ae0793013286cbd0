"""The sums of a run computed a second time, value by value in numpy, from the arrays a trace was made of."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from support.fabricate import bits
from support.fp8_oracle import outcome, values_of_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

COUNTS = ("num_vectors", "num_values", "num_nonfinite", "num_out_of_range", "num_clipped", "num_flushed")
SQUARES = ("sum_sq_signal", "sum_sq_error", "sum_sq_clip_error", "max_abs")


def expected_cells(
    tensors: Mapping[tuple[int, str], NDArray[Any]],
    cell_of_row: Sequence[tuple[Any, ...]],
    scale: Callable[[int, int, str], float | None],
    *,
    engine: str = "vllm-cuda",
    fmt: str = "e4m3fn",
    dtype: str = "bfloat16",
) -> dict[tuple[Any, ...], dict[str, float]]:
    """(layer, kv_head, tensor, *cell) → the sums of one candidate. scale: None where nothing is quantized."""
    totals: dict[tuple[Any, ...], dict[str, float]] = defaultdict(
        lambda: dict.fromkeys((*COUNTS, *SQUARES), 0)
    )
    for (layer, tensor), values in tensors.items():
        stored = bits(values, dtype)
        x = stored if dtype == "float32" else values_of_bits(stored, dtype)
        for head in range(x.shape[1]):
            multiplier = scale(layer, head, tensor)
            for row, cell in enumerate(cell_of_row):
                _add(totals[layer, head, tensor, *cell], x[row, head], multiplier, engine, fmt, dtype)
    return dict(totals)


def _add(
    total: dict[str, float], x: NDArray[Any], scale: float | None, engine: str, fmt: str, dtype: str
) -> None:
    finite = np.isfinite(x)
    exact = x[finite].astype(np.float64)
    total["num_vectors"] += 1
    total["num_values"] += int(finite.sum())
    total["num_nonfinite"] += int((~finite).sum())
    total["sum_sq_signal"] += float((exact**2).sum())
    total["max_abs"] = max(total["max_abs"], float(np.abs(exact).max(initial=0)))
    if scale is None:
        return
    found = outcome(x[finite], np.float32(scale), engine, fmt, dtype)
    squares = (exact - found.restored.astype(np.float64)) ** 2
    total["num_out_of_range"] += int(found.out_of_range.sum())
    total["num_clipped"] += int(found.clipped.sum())
    total["num_flushed"] += int(found.flushed.sum())
    total["sum_sq_error"] += float(squares.sum())
    total["sum_sq_clip_error"] += float(squares[found.clipped].sum())
