"""Scales per head of which the engine makes one: their maximum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.audit.finding import Finding
from kvtrace.scales.audit.scales_not_loaded import is_same, largest_of_rank, live_scales

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.scales.audit.context import AuditContext


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a warning where live scales are the maximum over heads, or the given backend would make them
    so.
    """
    live = {
        group: (shipped, effective)
        for group, (shipped, effective) in live_scales(context).items()
        if shipped is not None
        and not is_same(shipped, effective)
        and is_same(effective, largest_of_rank(context, group))
    }
    notes = context.resolved.notes_of("collapsed")
    if not live and not notes:
        return
    layers = sorted({layer for layer, _, _ in live}) or sorted({n for note in notes for n in note.layers})
    where = "the traced engine used the maximum over heads" if live else notes[0].text
    yield Finding(
        id="per-head-collapsed",
        severity="warning",
        message=f"{where}: narrow heads get a wider scale than shipped",
        action="Use FlashAttention 3 or later, or compare with a per-tensor artifact: this is one in effect.",
        layers=tuple(layers),
        evidence={
            "num_heads_collapsed": len(live),
            "backend": context.resolved.setup.backend,
            "examples": [
                {"layer": n, "kv_head": head, "tensor": tensor, "shipped": shipped, "effective": effective}
                for (n, head, tensor), (shipped, effective) in list(live.items())[:20]
            ],
        },
    )
