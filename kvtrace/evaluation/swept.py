"""Static scales by the rules that people try, made of the traces at hand: candidates beside the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.calibration.calibrate import calibrate, scales_of
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.candidates.applied import scale_keys
from kvtrace.candidates.swept import SweptScales

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.candidates import ServingSetup
    from kvtrace.trace.reader import Trace

_RULES: Final = {
    "p99.9": ("the 99.9th percentile of magnitudes", Recipe("percentile", 99.9, granularity="tensor")),
    "p99.99": ("the 99.99th percentile of magnitudes", Recipe("percentile", 99.99, granularity="tensor")),
    "absmax": ("the largest magnitude", Recipe(granularity="tensor")),
    "absmax-2x": ("2 × the largest magnitude", Recipe(headroom=2.0, granularity="tensor")),
    "absmax-16x": ("16 × the largest magnitude", Recipe(headroom=16.0, granularity="tensor")),
}
"""Name → in words, and as `calibrate` takes it."""


def swept_scales(traces: Sequence[Trace], setup: ServingSetup) -> list[SweptScales]:
    """Return one candidate a rule, per tensor: the scale at which it just covers the range.

    Every tensor is read once. Raises the errors of `calibrate`.
    """
    counted = calibrate(traces, _RULES["absmax"][1], DatasetRules())
    keys = {key for trace in traces for key in scale_keys(trace)}
    found = []
    for name, (rule, recipe) in _RULES.items():
        scales = scales_of(counted.calibrated, recipe, counted.model, counted.cache)
        by_key = {key: scales[key[0], key[2]][0] for key in sorted(keys)}
        found.append(SweptScales(name, by_key, rule, setup))
    return found
