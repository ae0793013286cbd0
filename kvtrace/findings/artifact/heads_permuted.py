"""Scales per head in another order than the model's heads (TP shards or GQA groups joined wrongly)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.findings.artifact.example import AMAX_PER_HEAD, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import TENSORS, Finding, numbers
from kvtrace.findings.rule import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.findings.artifact.context import AuditContext

_MIN_GAIN: Final = 0.1
"""Mean |ln| over layers and heads that a reordering must win: 10 % of the range."""
_MAX_MISFIT: Final = 0.25


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error per tensor where one reordering of the heads, the same in all layers, fits far
    better.
    """
    if context.observed is None or context.artifact.granularity != "attn_head" or context.num_kv_heads < 2:
        return
    for tensor in TENSORS:
        misfits = _misfits(context, tensor)
        if misfits is None:
            continue
        heads = np.arange(context.num_kv_heads)
        order = _best_order((misfits**2).mean(axis=0))
        as_stored = float(np.abs(misfits[:, heads, heads]).mean())
        reordered = float(np.abs(misfits[:, heads, order]).mean())
        if as_stored - reordered > _MIN_GAIN and reordered < min(_MAX_MISFIT, as_stored / 2):
            yield Finding(
                id="heads-permuted",
                severity="error",
                message=f"{tensor.upper()} scales fit the heads only after reordering: head i needs the "
                "scale stored "
                f"for head {order.tolist()}[i]",
                action="Check the order in which tensor-parallel shards or GQA groups were joined; reorder "
                "the scales.",
                tensors=(tensor,),
                evidence=numbers(
                    tensor=tensor,
                    order=order.tolist(),
                    mean_log_misfit=as_stored,
                    mean_log_misfit_reordered=reordered,
                ),
            )


def _misfits(context: AuditContext, tensor: str) -> NDArray[np.float64] | None:
    """Return [layer, head, stored head]: ln(observed / covered), less its mean over the layer.

    That mean does not depend on the heads' order, so headroom drops out whatever the order is. Layers that
    lack a usable scale or values are left out; None where all are. A scale that K and V share is made for the
    wider of them: of the other's order it says nothing, and some order always fits that by chance.
    """
    assert context.observed is not None
    served = ("k", "v") if _are_shared(context) else (tensor,)
    rows = []
    for layer in range(context.num_layers):
        units = [(layer, head, tensor) for head in range(context.num_kv_heads)]
        scales = [context.usable(unit) for unit in units]
        if all(unit in context.ratios for unit in units) and None not in scales:
            widest = [
                max(context.observed.units[layer, head, each].amax for each in served) for _, head, _ in units
            ]
            amax = np.log(widest)
            stored = np.log(np.array(scales, dtype=np.float64))
            rows.append((amax - amax.mean())[:, None] - (stored - stored.mean())[None, :])
    return np.stack(rows) if rows else None


def _are_shared(context: AuditContext) -> bool:
    """Return whether K and V have the same scale in every unit."""
    return all(
        context.shipped_value((layer, head, "k")) == context.shipped_value((layer, head, "v"))
        for layer, head, _ in context.shipped
    )


def _best_order(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return an order of little cost, by exchanges of two heads from the stored one until none helps.

    cost: [head, stored head], squared: then a wrong order always has an exchange that helps in a single
    layer.
    """
    order = np.arange(len(cost))
    improved = True
    while improved:
        improved = False
        for i in range(len(cost)):
            for j in range(i + 1, len(cost)):
                now = cost[i, order[i]] + cost[j, order[j]]
                if cost[i, order[j]] + cost[j, order[i]] < now - 1e-12:
                    order[i], order[j] = order[j], order[i]
                    improved = True
    return order


RULE: Final = ArtifactRule(
    id="heads-permuted",
    headline="The scales are stored for the wrong heads",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(
        ArtifactExample(
            amax={name: heads[::-1] for name, heads in AMAX_PER_HEAD.items()}, scales=covering(AMAX_PER_HEAD)
        ),
    ),
    valid=(ArtifactExample(amax=AMAX_PER_HEAD, scales=covering(AMAX_PER_HEAD, times=4)),),
)
