"""K's scales stored as V's and the other way round."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule
from kvtrace.findings.artifact.inverse_scales import inverted_tensors
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where K's range fits V's scales and V's fits K's, and neither fits its own.

    One of them off by (K / V)² fits crosswise too: that is no exchange where a factor for each explains more.
    """
    pairs = [
        (layer, head)
        for layer, head, tensor in sorted(context.ratios)
        if tensor == "k" and (layer, head, "v") in context.ratios
    ]
    if context.observed is None or len(pairs) < 2:
        return
    amax = np.log(
        [[context.observed.units[n, h, t].amax / E4M3FN.max_value for t in ("k", "v")] for n, h in pairs]
    )
    scale = np.log([[context.usable((n, h, t)) or 1.0 for t in ("k", "v")] for n, h in pairs])
    direct, crossed = _misfit(amax - scale), _misfit(amax - scale[:, ::-1])
    by_tensor = float(np.median(np.abs(amax - scale - np.median(amax - scale, axis=0))))
    is_swapped = crossed < min(math.log(1.5), by_tensor) and direct > max(math.log(2), 3 * crossed)
    if is_swapped and not inverted_tensors(context):
        k_ratio, v_ratio = np.exp(np.median(amax - scale, axis=0))
        yield Finding(
            id="kv-swapped",
            severity="error",
            message=f"K and V scales are swapped: observed ÷ covered amax is {k_ratio:.3g} for K and "
            f"{v_ratio:.3g} "
            "for V, and constant once they are exchanged",
            action="Exchange k_scale and v_scale, or export again.",
            evidence=numbers(
                num_units=len(pairs),
                median_k_observed_over_covered=float(k_ratio),
                median_v_observed_over_covered=float(v_ratio),
                median_log_misfit=direct,
                median_log_misfit_exchanged=crossed,
            ),
        )


def _misfit(log_ratio: NDArray[np.float64]) -> float:
    """Return the median deviation from one factor for all: headroom is no misfit."""
    return float(np.median(np.abs(log_ratio - np.median(log_ratio))))


_ALTERNATING: Final = {"0.k": 4.0, "0.v": 9.0, "1.k": 9.0, "1.v": 4.0}
_K_ABOVE_V: Final = {"0.k": 9.0, "0.v": 3.0, "1.k": 10.0, "1.v": 3.5}

RULE: Final = ArtifactRule(
    id="kv-swapped",
    headline="K and V scales are swapped",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(ArtifactExample(amax={"0.v": 8.0, "0.k": 1.0, "1.v": 16.0, "1.k": 2.5}),),
    valid=(
        ArtifactExample(amax=AMAX),
        # K's alone, too narrow by (K / V)².
        ArtifactExample(
            amax=_K_ABOVE_V,
            scales={
                name: amax / E4M3FN.max_value / (9 if name.endswith("k") else 1)
                for name, amax in _K_ABOVE_V.items()
            },
        ),
        # Reciprocals: what K lacks V has too much of, so that they would fit each other.
        ArtifactExample(
            amax=_ALTERNATING, scales={name: E4M3FN.max_value / amax for name, amax in _ALTERNATING.items()}
        ),
    ),
)
