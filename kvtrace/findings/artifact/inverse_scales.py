"""The reciprocal was stored: 448 / amax instead of amax / 448."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding, numbers
from kvtrace.findings.rule import Tier
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where observed ÷ covered follows (amax / 448)² over all units instead of a constant.

    A headroom factor shifts either by a constant, so deviations from the median are compared.
    """
    if context.observed is None or not context.ratios:
        return
    log_ratio = np.log([context.ratios[unit] for unit in sorted(context.ratios)])
    log_amax = np.log(
        [context.observed.units[unit].amax / E4M3FN.max_value for unit in sorted(context.ratios)]
    )
    as_inverse, as_is = log_ratio - 2 * log_amax, log_ratio
    inverse_misfit = float(np.median(np.abs(as_inverse)))
    misfit = float(np.median(np.abs(as_is)))
    if inverse_misfit < math.log(1.5) and misfit > max(math.log(4), 3 * inverse_misfit):
        yield Finding(
            id="inverse-scales",
            severity="error",
            message="the scales are stored inverted: observed ÷ covered amax follows (amax / 448)² instead "
            "of 1",
            action="Store amax / 448: the number that the cached code is multiplied with.",
            evidence=numbers(
                num_units=len(log_ratio),
                median_observed_over_covered=float(np.exp(np.median(log_ratio))),
                median_squared_amax_over_448=float(np.exp(np.median(2 * log_amax))),
                median_log_misfit_as_inverse=inverse_misfit,
                median_log_misfit_as_is=misfit,
            ),
        )


RULE: Final = ArtifactRule(
    id="inverse-scales",
    headline="The scales are stored inverted",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(
        ArtifactExample(amax=AMAX, scales={name: E4M3FN.max_value / amax for name, amax in AMAX.items()}),
    ),
    valid=(
        ArtifactExample(amax=AMAX),
        ArtifactExample(amax=AMAX, scales=covering(AMAX, times=16)),
    ),
)
