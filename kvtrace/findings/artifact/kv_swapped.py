"""K's scales stored as V's and the other way round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.calibration.mse_search import E4M3_MAX
from kvtrace.findings.artifact.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where K's range fits V's scales and V's fits K's, and neither fits its own."""
    pairs = [
        (layer, head)
        for layer, head, tensor in sorted(context.ratios)
        if tensor == "k" and (layer, head, "v") in context.ratios
    ]
    if context.observed is None or len(pairs) < 2:
        return
    amax = np.log([[context.observed.units[n, h, t].amax / E4M3_MAX for t in ("k", "v")] for n, h in pairs])
    scale = np.log([[context.usable((n, h, t)) or 1.0 for t in ("k", "v")] for n, h in pairs])
    direct, crossed = _misfit(amax - scale), _misfit(amax - scale[:, ::-1])
    if crossed < math.log(1.5) and direct > max(math.log(2), 3 * crossed):
        k_ratio, v_ratio = np.exp(np.median(amax - scale, axis=0))
        yield Finding(
            id="kv-swapped",
            severity="error",
            message=f"K and V scales are swapped: observed ÷ covered amax is {k_ratio:.3g} for K and "
            f"{v_ratio:.3g} "
            "for V, and constant once they are exchanged",
            action="Exchange k_scale and v_scale, or export again.",
            evidence={
                "num_units": len(pairs),
                "median_k_observed_over_covered": float(k_ratio),
                "median_v_observed_over_covered": float(v_ratio),
                "median_log_misfit": direct,
                "median_log_misfit_exchanged": crossed,
            },
        )


def _misfit(log_ratio: NDArray[np.float64]) -> float:
    """Return the median deviation from one factor for all: headroom is no misfit."""
    return float(np.median(np.abs(log_ratio - np.median(log_ratio))))
