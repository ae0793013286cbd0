"""One scale for K and V where their ranges differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.findings.artifact.context import MATTERS
from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding, tensors_in
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Tensor


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a note where K and V share their scales; a warning where the trace shows that it costs
    something.
    """
    if context.cache.is_latent:
        return  # there is no V to calibrate apart
    shared = [
        (layer, head)
        for layer, head, tensor in sorted(context.shipped)
        if tensor == "k"
        and context.shipped_value((layer, head, "k")) == context.shipped_value((layer, head, "v"))
    ]
    num_units = sum(tensor == "k" for _, _, tensor in context.shipped)
    values = {context.shipped_value((layer, head, "k")) for layer, head in shared}
    if len(shared) < max(2, num_units) or len(values) < 2:
        return  # some unit differs, or all are the same number: constant-scales speaks of that
    evidence: dict[str, Any] = {"num_units": len(shared)}
    severity, message = "note", "K and V share one scale"
    tensors: tuple[Tensor, ...] = ()
    layers: set[int] = set()
    if context.observed is not None:
        amax = {unit: m.amax for unit, m in context.observed.units.items()}
        apart = {
            (n, h): amax[n, h, "k"] / amax[n, h, "v"]
            for n, h in shared
            if amax.get((n, h, "k")) and amax.get((n, h, "v"))
        }
        # The scale is made for the wider of the two: the narrower one alone can lose by it.
        narrower = {(n, h, "v" if ratio > 1 else "k"): ratio for (n, h), ratio in apart.items()}
        costly = [
            unit
            for unit in narrower
            if (cost := context.costs.get(unit)) and cost.excess > MATTERS and cost.is_too_wide
        ]
        widest = max((max(ratio, 1 / ratio) for ratio in apart.values()), default=1.0)
        evidence |= {
            "median_k_over_v_amax": float(np.median(list(apart.values()))) if apart else None,
            "max_ratio_of_ranges": widest,
            "num_units_with_excess_error": len(costly),
        }
        message += f"; their ranges differ by up to {widest:,.{0 if widest >= 100 else 2}f} times"
        tensors = tensors_in(costly or narrower)
        layers = {unit[0] for unit in costly}
        severity = "warning" if costly else "note"
    yield Finding(
        id="merged-kv",
        severity="warning" if severity == "warning" else "note",
        message=message,
        action="Calibrate K and V apart: engines and formats of today take two scales.",
        evidence=(evidence,),
        layers=tuple(sorted(layers)),
        tensors=tensors,
    )


RULE: Final = ArtifactRule(
    id="merged-kv",
    headline="One merged scale serves both K and V",
    role="cause",
    tier=Tier.place,
    explains=("symptom",),
    makes=("flushes",),
    follows_loss=True,
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scales={"0.k": 0.5, "0.v": 0.5, "1.k": 0.25, "1.v": 0.25}),),
    valid=(ArtifactExample(),),
)
