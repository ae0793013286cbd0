"""Scales shipped for fewer layers than write or read an FP8 cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule, covering
from kvtrace.findings.finding import TENSORS, Finding
from kvtrace.findings.rule import Tier
from kvtrace.scales.names import layer_of
from kvtrace.scales.resolve import layer_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.findings.finding import Tensor

_READS_CACHE_OF: Final = "reads_cache_of"


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where some, not all, layers with a cache of their own lack a K or V scale, and one where
    layers that read another's cache lack its scales.

    A layer that keeps a state, or was left in the model's dtype on purpose, lacks nothing.
    """
    if not context.artifact.layers:
        return
    missing = {tensor: _missing(context, tensor) for tensor in context.cache.tensors}
    layers = sorted({layer for found in missing.values() for layer in found})
    own = context.cache.own_cache(layers)
    tensors = tuple(tensor for tensor in TENSORS if set(missing.get(tensor, ())) & set(own))
    if own:
        yield Finding(
            id="missing-layers",
            severity="error",
            message=f"{_what(tensors)} is shipped in {layer_ranges(own)} of {context.num_layers}; the engine "
            f"uses {_what_happens(context, own)} there",
            action="Calibrate every layer, or leave these layers unquantized (vLLM: "
            f"--kv-cache-dtype-skip-layers {' '.join(map(str, own))}).",
            layers=tuple(own),
            tensors=tensors,
            evidence=(_evidence(context, missing),),
        )
    shared = [layer for layer in layers if layer in context.cache.shared]
    if shared:
        yield Finding(
            id="missing-layers",
            severity="error",
            message=f"{layer_ranges(shared)} read the cache of {_targets(context, shared)} and need its "
            "scales under their own names; none is shipped, so vLLM up to 0.32 reads that cache with 1.0",
            action="Copy to each layer the scales of the one whose cache it reads (`kvtrace calibrate` "
            "does). Do not leave these layers out of FP8: they would read FP8 codes as the model's dtype.",
            layers=tuple(shared),
            evidence=(
                _evidence(context, missing)
                | {_READS_CACHE_OF: {str(n): context.cache.shared[n] for n in shared}},
            ),
        )


def _missing(context: AuditContext, tensor: str) -> list[int]:
    k_serves = context.cache.k_serves_v if tensor == "v" else frozenset()
    named = {layer_of(unmatched.name) for unmatched in context.artifact.unmatched}  # shipped, by another name
    expected = [n for n in context.layers if n not in k_serves | named | context.unquantized]
    return [n for n in expected if (n, 0, tensor) not in context.shipped]


def _targets(context: AuditContext, shared: list[int]) -> str:
    targets = {context.cache.shared[layer] for layer in shared}
    known = sorted(target for target in targets if target is not None)
    return layer_ranges(known) if known and None not in targets else "an earlier layer of their kind"


def _what(tensors: tuple[Tensor, ...]) -> str:
    return "no scale" if len(tensors) == len(TENSORS) else f"no {tensors[0].upper()} scale"


def _what_happens(context: AuditContext, layers: list[int]) -> str:
    absent = [(n, 0, tensor) for n in layers for tensor in TENSORS if (n, 0, tensor) not in context.shipped]
    in_use = (context.resolved.scales.get(unit) for unit in absent)
    used = {scale.is_default for scale in in_use if scale is not None}
    return "1.0" if used == {True} else "1.0 or the other tensor's scale"


def _evidence(context: AuditContext, missing: dict[str, list[int]]) -> dict[str, object]:
    return {
        "num_layers": context.num_layers,
        "num_layers_without_k": len(missing["k"]),
        "num_layers_without_v": len(missing.get("v", ())),
    }


def _is_measured(finding: Finding) -> bool:
    """Return whether what it costs shows in its layers: one that reads another's cache has no rows."""
    return _READS_CACHE_OF not in finding.evidence[0]


RULE: Final = ArtifactRule(
    id="missing-layers",
    headline="No scale is shipped for {layers}",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    follows_loss=_is_measured,
    mended_by="recalibrate",
    check=check,
    invalid=(ArtifactExample(scales=covering({"0.k": 8.0, "0.v": 1.0, "1.k": 16.0})),),
    valid=(
        ArtifactExample(),
        # Stored, by a name that no engine reads: another rule's.
        ArtifactExample(
            scales=covering({"0.k": 8.0, "0.v": 1.0, "1.k": 16.0}),
            names={"model.layers.1.self_attn.v_amax": 0.5},
        ),
        ArtifactExample(scales=covering({"0.k": 8.0, "0.v": 1.0}), unquantized=(1,)),
    ),
)
