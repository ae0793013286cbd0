"""Scales of layer i stored for layer i + 1 or i - 1: counted from another number, or a layer left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule, covering
from kvtrace.findings.artifact.inverse_scales import inverted_tensors
from kvtrace.findings.finding import TENSORS, Finding
from kvtrace.findings.rule import Tier
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.findings.artifact.context import AuditContext

_MIN_LAYERS: Final = 4
"""Fewer fit some shift by chance."""
_MISFIT: Final = math.log(1.4)
"""Median |ln| of observed over covered from which a layer's scale is not its own."""
_FITS: Final = math.log(1.25)
_BETTER: Final = 3.0


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where the scales fit a neighbour's range in all layers, and not their own."""
    found = _by_layer(context)
    if found is None:
        return
    as_stored = max(_misfit(amax - scale) for amax, scale in found)
    misfits = {
        1: max(_misfit(amax[1:] - scale[:-1]) for amax, scale in found),
        -1: max(_misfit(amax[:-1] - scale[1:]) for amax, scale in found),
    }
    by = min(misfits, key=lambda one: misfits[one])
    if as_stored < _MISFIT or misfits[by] > min(_FITS, as_stored / _BETTER) or inverted_tensors(context):
        return
    whose = "next" if by == 1 else "previous"
    yield Finding(
        id="scales-of-neighbour-layer",
        severity="error",
        message=f"the scales stored for a layer fit the {whose} one's values, in "
        f"{context.num_layers - 1} of {context.num_layers} layers",
        action="Look at how the export counts layers: from 0, and every layer that has K and V.",
        layers=tuple(range(context.num_layers)),
        tensors=TENSORS,
        evidence=(
            {
                "offset": by,
                "median_log_misfit": as_stored,
                "median_log_misfit_shifted": misfits[by],
            },
        ),
    )


def _by_layer(context: AuditContext) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]] | None:
    """Return ln(amax / 448) and ln(scale) of K and of V, [layers, heads]; None where any layer lacks one.

    Apart, since a factor on one tensor alone is no shift of its layers.
    """
    if context.observed is None or context.num_layers < _MIN_LAYERS:
        return None
    observed, found = context.observed, []
    for tensor in TENSORS:
        heads = sorted({head for _, head, own in context.ratios if own == tensor})
        units = [[(layer, head, tensor) for head in heads] for layer in range(context.num_layers)]
        if not heads or any(unit not in context.ratios for row in units for unit in row):
            return None
        amax = np.log([[observed.units[unit].amax / E4M3FN.max_value for unit in row] for row in units])
        found.append((amax, np.log([[context.usable(unit) or 1.0 for unit in row] for row in units])))
    return found


def _misfit(log_ratio: NDArray[np.float64]) -> float:
    """Return the median deviation from one factor for all: headroom is no misfit."""
    return float(np.median(np.abs(log_ratio - np.median(log_ratio))))


_AMAX: Final = {
    f"{n}.{t}": a
    for n, pair in enumerate([(8.0, 1.0), (1.0, 6.0), (20.0, 0.5), (3.0, 9.0)])
    for t, a in zip("kv", pair, strict=True)
}
_SHIFTED: Final = {f"{n}.{t}": _AMAX[f"{min(n + 1, 3)}.{t}"] for n in range(4) for t in "kv"}
_WIDENING: Final = {
    f"{n}.{t}": a
    for n, of_layer in enumerate((4.0, 9.0, 4.0, 9.0))
    for t, a in zip("kv", (of_layer, 2.0), strict=True)
}

RULE: Final = ArtifactRule(
    id="scales-of-neighbour-layer",
    headline="Layers have the scales of their neighbours",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(ArtifactExample(num_layers=4, amax=_AMAX, scales=covering(_SHIFTED)),),
    valid=(
        ArtifactExample(num_layers=4, amax=_AMAX, scales=covering(_AMAX, times=2)),
        # V alone is off, by one factor.
        ArtifactExample(
            num_layers=4,
            amax=_AMAX,
            scales=covering({name: a / 4 if name.endswith("v") else a for name, a in _AMAX.items()}),
        ),
        # Reciprocals: of layers that widen by one factor the neighbour's fits too.
        ArtifactExample(
            num_layers=4,
            amax=_WIDENING,
            scales={name: E4M3FN.max_value / amax for name, amax in _WIDENING.items()},
        ),
        # Alike layers: any neighbour's scale fits as well as their own.
        ArtifactExample(
            num_layers=4,
            amax=dict.fromkeys(_AMAX, 8.0),
            scales=covering(dict.fromkeys(_AMAX, 8.0)),
        ),
    ),
)
