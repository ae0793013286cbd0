"""What a set of scales costs on counted magnitudes, and whether a wider set would be the better bet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.calibration.cost import ScaleCost, scale_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvtrace.calibration.magnitudes import Group, Magnitudes

FACTORS: Final = (0.25, 0.5, 1 / 1.5, 1.0, 2.0, 4.0, 16.0, 256.0)
"""Widths compared with the chosen one."""
FREE: Final = 1.05
"""A wider scale whose squared error is within 5 % of the chosen one's costs nothing that matters."""


@dataclass(frozen=True, slots=True)
class TensorCost:
    """Sums over all layers and heads of K or V, for one factor on the scales."""

    tensor: str
    factor: float
    num_values: int
    num_out_of_range: int
    num_clipped: int
    num_flushed: int
    sum_sq_signal: float
    sum_sq_error: float
    sum_sq_clip_error: float
    sum_sq_flush_error: float
    mean_relative_error: float
    """Mean over layers and heads of Σ (x − x̂)² / Σ x²: each head counts alike."""
    worst: Group
    worst_relative_error: float


def tensor_costs(
    groups: Mapping[Group, Magnitudes],
    scale_of: Callable[[Group], float],
    *,
    factors: tuple[float, ...] = (1.0,),
    engine: str = "vllm-cuda",
    dtype: str = "bfloat16",
) -> list[TensorCost]:
    """Return the costs of K and of V at each factor times the scales. Groups of zeros alone count for
    nothing.
    """
    found = []
    for tensor in ("k", "v"):
        costs = {
            group: scale_cost(magnitudes, scale_of(group) * np.array(factors), engine=engine, dtype=dtype)
            for group, magnitudes in groups.items()
            if group[2] == tensor and magnitudes.amax > 0
        }
        if costs:
            found += [_summed(tensor, costs, index, factor) for index, factor in enumerate(factors)]
    return found


def better_width(costs: list[TensorCost]) -> float | None:
    """Return the largest factor that costs K and V nothing that matters, None where the chosen width is it.

    costs: of several factors, 1.0 among them.
    """
    chosen = {c.tensor: c.mean_relative_error for c in costs if c.factor == 1.0}
    free = [
        factor
        for factor in sorted({c.factor for c in costs if c.factor > 1})
        if all(c.mean_relative_error <= FREE * chosen[c.tensor] for c in costs if 1 < c.factor <= factor)
    ]
    return free[-1] if free else None


def _summed(tensor: str, costs: dict[Group, ScaleCost], index: int, factor: float) -> TensorCost:
    relative = {group: float(cost.relative_error[index]) for group, cost in costs.items()}
    worst = max(relative, key=lambda group: relative[group])

    def total(name: str) -> float:
        return float(sum(getattr(cost, name)[index] for cost in costs.values()))

    return TensorCost(
        tensor=tensor,
        factor=factor,
        num_values=sum(cost.num_values for cost in costs.values()),
        num_out_of_range=int(total("num_out_of_range")),
        num_clipped=int(total("num_clipped")),
        num_flushed=int(total("num_flushed")),
        sum_sq_signal=sum(cost.sum_sq_signal for cost in costs.values()),
        sum_sq_error=total("sum_sq_error"),
        sum_sq_clip_error=total("sum_sq_clip_error"),
        sum_sq_flush_error=total("sum_sq_flush_error"),
        mean_relative_error=float(np.mean(list(relative.values()))),
        worst=worst,
        worst_relative_error=relative[worst],
    )
