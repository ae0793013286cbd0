"""Whether a calibration rests on values that an engine computed from K and V which it had clipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvtrace.figures import times
from kvtrace.numerics.formats import FORMATS
from kvtrace.numerics.vllm_platforms import fp8_format_on

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.calibration.magnitudes import Group, Magnitudes
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Saturation:
    """What the captured engines clipped."""

    num_heads: int
    """Of K and of V, in which values lay beyond what every engine's scale covers."""
    num_all: int
    most: float
    """Largest magnitude over the covered one, in any of them."""

    def text(self, dtype: str) -> str:
        """Return it in words, with what to do. dtype: the model's own, by name."""
        return (
            f"The captured engine clipped {self.num_heads:,} of {self.num_all:,} heads, values up to "
            f"{times(self.most)} what its scales cover. Later layers saw clipped K and V, so "
            "their values may be smaller than without. Look again once these scales are served, or capture "
            f"with --kv-cache-dtype {dtype} and calibrate on that"
        )


def saturation(traces: Sequence[Trace], counted: Mapping[Group, Magnitudes]) -> Saturation | None:
    """Return what was clipped while these values were captured; None: nothing, or an engine had no FP8 cache.

    counted: over all traces, so of several a head counts where values lie beyond what each of them covers.
    """
    ends: dict[Group, _End] = {}
    for trace in traces:
        if trace.cache_kind != "static_fp8":
            return None
        for group, end in _ends(trace).items():
            ends[group] = max(ends.get(group, end), end)
    compared = {group: one for group, one in counted.items() if group in ends}
    beyond = [
        one.amax / ends[group].covered for group, one in compared.items() if one.amax > ends[group].clips_from
    ]
    return Saturation(len(beyond), len(compared), max(beyond)) if beyond else None


class _End(NamedTuple):
    """Where a head's range ends."""

    covered: float
    """Largest magnitude in range."""
    clips_from: float
    """Beyond it values are clipped: half a step further still rounds back."""


def _ends(trace: Trace) -> dict[Group, _End]:
    """Return them where the engine wrote FP8 in a format that is known."""
    engine = trace.record.engine
    native = trace.platform and fp8_format_on(trace.platform, engine.device, engine.compute_capability)
    found: dict[Group, _End] = {}
    for layer in trace.layers.values():
        name = "e5m2" if layer.kv_cache_dtype == "fp8_e5m2" else native
        if layer.cache_kind != "static_fp8" or not name:
            continue
        for tensor, scales in (("k", layer.k_scale), ("v", layer.v_scale)):
            for head, scale in zip(layer.kv_heads, scales, strict=True):
                end = _End(scale * FORMATS[name].max_value, scale * FORMATS[name].clip_threshold("nearest"))
                found[layer.index, head, tensor] = end
    return found
