"""What a trace says about scales: the range that came, what the engine used, and what would have been
best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.calibration.cost import scale_cost
from kvtrace.calibration.magnitudes import (
    NOT_SELECTED,
    Group,
    Magnitudes,
    TraceSelection,
    count_magnitudes,
    merged,
)
from kvtrace.calibration.mse_search import least_error_scale

if TYPE_CHECKING:
    from kvtrace.scales.artifact import Granularity
    from kvtrace.trace.reader import Trace

TENSORS: Final = ("k", "v")


@dataclass(frozen=True)
class Observed:
    """One trace, counted. A *unit* is what one scale serves: a KV head, or all heads of a layer and
    tensor.
    """

    trace: Trace
    granularity: Granularity
    engine: str
    groups: dict[Group, Magnitudes]

    def of_granularity(self, granularity: Granularity, engine: str | None = None) -> Observed:
        """Return the same counts for units of another granularity, and for another engine's rounding."""
        return replace(self, granularity=granularity, engine=engine or self.engine)

    @cached_property
    def units(self) -> dict[Group, Magnitudes]:
        """Return the counts of each unit; with one scale per tensor the head is 0."""
        return per_unit(self.groups, self.granularity)

    def units_beyond(self, length: int) -> dict[Group, Magnitudes]:
        """Return `units` of the rows at positions from `length` on. Reads the tensors again if there are
        any.
        """
        is_beyond = self.trace.tokens.position >= length
        if not is_beyond.any():
            return {}
        selection = np.where(is_beyond, 0, NOT_SELECTED)
        (beyond,) = count_magnitudes([TraceSelection(self.trace, selection)], 1)
        return per_unit(beyond, self.granularity)

    @cached_property
    def optimal(self) -> dict[Group, float]:
        """Return the scale of least squared error of each unit that has a value other than 0."""
        return {unit: self._optimal_of(unit) for unit, m in self.units.items() if m.amax > 0}

    def least_error_of(self, unit: Group) -> float:
        """Return Σ (x − x̂)² / Σ x² of a unit at its optimal scale; it has a value other than 0."""
        if unit not in self._least_errors:
            self._least_errors[unit] = self.relative_error(unit, self._optimal_of(unit))
        return self._least_errors[unit]

    @cached_property
    def _least_errors(self) -> dict[Group, float]:
        return {}

    @cached_property
    def _optimal_scales(self) -> dict[Group, float]:
        return {}

    def _optimal_of(self, unit: Group) -> float:
        # One unit after the other: an audit within a replay asks for the few whose error stands out.
        if unit not in self._optimal_scales:
            self._optimal_scales[unit] = least_error_scale(
                self.units[unit], engine=self.engine, dtype=self.dtype
            )
        return self._optimal_scales[unit]

    @property
    def dtype(self) -> str:
        """Return the captured dtype."""
        return self.trace.record.model.dtype

    def relative_error(self, unit: Group, scale: float) -> float:
        """Return Σ (x − x̂)² / Σ x² of a unit at a scale."""
        cost = scale_cost(self.units[unit], [scale], engine=self.engine, dtype=self.dtype)
        return float(cost.relative_error[0])

    def effective(self, group: Group) -> float | None:
        """Return the scale that the traced engine used for a KV head, None where that was not static FP8."""
        layer = self.trace.layers.get(group[0])
        if layer is None or layer.cache_kind != "static_fp8" or group[1] not in layer.kv_heads:
            return None
        scales = layer.k_scale if group[2] == "k" else layer.v_scale
        return scales[layer.kv_heads.index(group[1])]


def observe(trace: Trace, granularity: Granularity, *, engine: str = "vllm-cuda") -> Observed:
    """Return the counts of a trace's magnitudes; every tensor is read once. Raises IntegrityError."""
    everything = TraceSelection(trace, np.zeros(len(trace.tokens), dtype=np.int64))
    (groups,) = count_magnitudes([everything], 1)
    return Observed(trace, granularity, engine, groups)


def per_unit(groups: dict[Group, Magnitudes], granularity: Granularity) -> dict[Group, Magnitudes]:
    """Return the counts of each unit from those of each KV head."""
    if granularity == "attn_head":
        return groups
    parts: dict[Group, list[Magnitudes]] = {}
    for (layer, _, tensor), magnitudes in groups.items():
        parts.setdefault((layer, 0, tensor), []).append(magnitudes)
    return {unit: merged(found) for unit, found in parts.items()}
