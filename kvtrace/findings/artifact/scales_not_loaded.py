"""The scales that the traced engine used are not those shipped: dropped by the loader, or another
artifact's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kvtrace.findings.artifact.example import AMAX, ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.plain_text import plain
from kvtrace.scales.resolve import layer_ranges
from kvtrace.trace.cache_dtypes import quantized_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvtrace.calibration.magnitudes import Group
    from kvtrace.findings.artifact.context import AuditContext

WHAT_IF: Final = "made_after_capture"
"""In the evidence where the scales cannot have run."""
_SAME = 1e-6
"""Relative: scales pass through float32 alone."""


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield errors where the live engine's scale differs from the artifact's; a collapse has its own rule."""
    in_use = live_scales(context)
    if context.observed is not None and not in_use:
        yield _no_fp8(context)
        return
    if context.is_what_if:
        if any(shipped is None or not is_same(shipped, live) for shipped, live in in_use.values()):
            yield _what_if(in_use)
        return
    used_one = {
        group: (shipped, live) for group, (shipped, live) in in_use.items() if live == 1.0 and shipped != 1.0
    }
    layers = sorted({layer for layer, _, _ in used_one})
    if layers:
        yield Finding(
            id="scales-not-loaded",
            severity="error",
            message=f"engine used 1.0 in {layer_ranges(layers)}, where the artifact ships "
            f"{_first_shipped(used_one)}",
            action="Check the names against unmatched-names, the loader's log, and --kv-cache-dtype.",
            layers=tuple(layers),
            evidence=(_evidence(used_one, len(in_use)),),
        )
    other: dict[Group, tuple[float | None, float]] = {
        group: (shipped, live)
        for group, (shipped, live) in in_use.items()
        if live != 1.0
        and shipped is not None
        and not is_same(shipped, live)
        and not is_same(live, largest_of_rank(context, group))
    }
    if other:
        layers = sorted({layer for layer, _, _ in other})
        yield Finding(
            id="scales-not-loaded",
            severity="error",
            message=f"the traced engine used other scales than these in {layer_ranges(layers)}",
            action="Audit the checkpoint that the engine was really started with, or capture again with "
            "this one.",
            layers=tuple(layers),
            evidence=(_evidence(other, len(in_use)),),
        )


def _what_if(in_use: dict[Group, tuple[float | None, float]]) -> Finding:
    return Finding(
        id="scales-not-loaded",
        severity="note",
        message="these scales were made after this capture began, so other scales ran",
        action="Compare them with what ran; to see them in effect, serve with them and capture again.",
        evidence=({"num_heads_compared": len(in_use), WHAT_IF: True},),
    )


def live_scales(context: AuditContext) -> dict[Group, tuple[float | None, float]]:
    """Return (shipped or None, live) per KV head where the traced engine wrote FP8."""
    if context.observed is None:
        return {}
    found = {}
    for layer in range(context.num_layers):
        for head in range(context.num_kv_heads):
            for tensor in ("k", "v"):
                live = context.observed.effective((layer, head, tensor))
                if live is not None:
                    found[layer, head, tensor] = (shipped_for(context, (layer, head, tensor)), live)
    return found


def shipped_for(context: AuditContext, group: Group) -> float | None:
    """Return the stored scale that a KV head should get: its own, or its layer's."""
    own = context.shipped_value(group)
    if own is not None or context.has_unit_per_head:
        return own
    return context.shipped_value((group[0], 0, group[2]))


def largest_of_rank(context: AuditContext, group: Group) -> float:
    """Return the maximum of the stored scales over the KV heads that share a rank with this one."""
    layer, head, tensor = group
    heads = max(1, context.num_kv_heads // context.resolved.setup.tp)
    first = head // heads * heads
    return max(
        (shipped_for(context, (layer, other, tensor)) or math.nan for other in range(first, first + heads)),
    )


def is_same(one: float, other: float) -> bool:
    """Whether two scales are equal up to float32 rounding."""
    return math.isclose(one, other, rel_tol=_SAME)


def _first_shipped(found: dict[Group, tuple[float | None, float]]) -> str:
    shipped = next(iter(found.values()))[0]
    return "none" if shipped is None else f"{shipped:g}"


def _evidence(found: dict[Group, tuple[float | None, float]], num_compared: int) -> dict[str, Any]:
    return {
        "num_heads_compared": num_compared,
        "num_heads_different": len(found),
        "examples": examples_of(found),
    }


def examples_of(found: Mapping[Group, tuple[float | None, float]]) -> list[dict[str, Any]]:
    """Return the first heads, each with its scale as shipped and as the traced engine used it."""
    return [
        {"layer": layer, "kv_head": head, "tensor": tensor, "shipped": shipped, "effective": live}
        for (layer, head, tensor), (shipped, live) in list(found.items())[:20]
    ]


def _no_fp8(context: AuditContext) -> Finding:
    assert context.observed is not None
    trace = context.observed.trace
    if trace.cache_kind == "other":
        found = f"{plain(quantized_names(trace.cache_dtypes), 60)}, which is not static FP8"
    else:
        found = f"{plain(trace.record.engine.kv_cache_dtype, 30)}: no FP8 was in effect"
    return Finding(
        id="scales-not-loaded",
        severity="note",
        message=f"the traced engine's cache was {found}, so whether the engine loads these scales cannot be "
        "told from this trace",
        action="Capture from an engine that runs with --kv-cache-dtype fp8 and this checkpoint to settle it.",
        evidence=({"num_heads_compared": 0},),
    )


RULE: Final = ArtifactRule(
    id="scales-not-loaded",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    in_run="stored",
    check=check,
    invalid=(
        ArtifactExample(amax=AMAX, live=dict.fromkeys(AMAX, 1.0)),
        # Another artifact's.
        ArtifactExample(amax=AMAX, live=covering(AMAX, times=2)),
        # No FP8 was in effect: a note that it cannot be told.
        ArtifactExample(amax=AMAX),
        # Made in 2096, long after the capture: a note that they did not run.
        ArtifactExample(amax=AMAX, live=covering(AMAX, times=2), manifest={"created_at": 4e9}),
    ),
    valid=(
        ArtifactExample(amax=AMAX, live=covering(AMAX)),
        ArtifactExample(),
    ),
)
