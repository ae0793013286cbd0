"""The reciprocal was stored: 448 / amax instead of amax / 448."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import TENSORS, Finding
from kvtrace.findings.rule import Tier
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Tensor


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where observed ÷ covered follows (amax / 448)² over K, V or both instead of a constant.

    Scales that are all wide by (448 / amax)² of a typical amax look like reciprocals too: those are named
    where one factor does not explain them better.
    """
    tensors = inverted_tensors(context)
    if not tensors:
        return
    misfits = _misfits(context, tensors)
    log_ratio, log_amax = _logs(context, tensors)
    which = "the scales" if len(tensors) == len(TENSORS) else f"{tensors[0].upper()}'s scales"
    yield Finding(
        id="inverse-scales",
        severity="error",
        message=f"{which} are stored inverted: observed ÷ covered amax follows (amax / 448)² instead of 1",
        action="Store amax / 448: the number that the cached code is multiplied with.",
        layers=tuple(sorted({layer for layer, _, tensor in context.ratios if tensor in tensors})),
        tensors=tensors,
        evidence=(
            {
                "num_units": len(log_ratio),
                "median_observed_over_covered": float(np.exp(np.median(log_ratio))),
                "median_squared_amax_over_448": float(np.exp(np.median(2 * log_amax))),
                "median_log_misfit_as_inverse": misfits.as_inverse,
                "median_log_misfit_as_is": misfits.as_is,
            },
        ),
    )


def inverted_tensors(context: AuditContext) -> tuple[Tensor, ...]:
    """Return the tensors whose scales are reciprocals of those that fit; empty: none.

    It says what every scale should be, without a factor left open: a stronger reason than a likeness.
    """
    if context.observed is None:
        return ()
    of = {tensor: _misfits(context, (tensor,)) for tensor in TENSORS}
    tensors = tuple(tensor for tensor in TENSORS if _is_inverse(of[tensor]))
    return tensors or (TENSORS if _is_inverse(_misfits(context, TENSORS)) else ())


class _Misfits(NamedTuple):
    """The median |ln| by which scales miss their values."""

    as_is: float
    as_inverse: float
    by_a_factor: float
    """Where one factor may be taken from all."""


def _misfits(context: AuditContext, tensors: tuple[Tensor, ...]) -> _Misfits:
    log_ratio, log_amax = _logs(context, tensors)
    if not len(log_ratio):
        return _Misfits(0.0, math.inf, 0.0)
    rests = log_ratio, log_ratio - 2 * log_amax, log_ratio - np.median(log_ratio)
    return _Misfits(*(float(np.median(np.abs(rest))) for rest in rests))


def _logs(
    context: AuditContext, tensors: tuple[Tensor, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ln of observed over covered amax and of amax over 448, [units]."""
    assert context.observed is not None
    units = [unit for unit in sorted(context.ratios) if unit[2] in tensors]
    log_ratio = np.log([context.ratios[unit] for unit in units])
    return log_ratio, np.log([context.observed.units[unit].amax / E4M3FN.max_value for unit in units])


def _is_inverse(found: _Misfits) -> bool:
    fits = found.as_inverse < min(math.log(1.5), found.by_a_factor)
    return fits and found.as_is > max(math.log(4), 3 * found.as_inverse)


_ALIKE: Final = {"0.k": 8.0, "0.v": 6.0, "1.k": 9.0, "1.v": 7.0}
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
        # V alone.
        ArtifactExample(
            amax=AMAX,
            scales={
                name: E4M3FN.max_value / amax if name.endswith("v") else amax / E4M3FN.max_value
                for name, amax in AMAX.items()
            },
        ),
    ),
    valid=(
        ArtifactExample(amax=AMAX),
        ArtifactExample(amax=AMAX, scales=covering(AMAX, times=16)),
        # As wide as the reciprocals of heads with an amax of 7 are.
        ArtifactExample(amax=_ALIKE, scales=covering(_ALIKE, times=(E4M3FN.max_value / 7) ** 2)),
    ),
)
