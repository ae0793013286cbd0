"""Scales shipped for fewer layers than the model has."""

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


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield an error where some, not all, layers lack a K or V scale and are quantized all the same."""
    named = {layer_of(unmatched.name) for unmatched in context.artifact.unmatched}  # shipped, by another name
    expected = [n for n in range(context.num_layers) if n not in context.unquantized | named]
    missing = {tensor: [n for n in expected if (n, 0, tensor) not in context.shipped] for tensor in TENSORS}
    layers = sorted(set(missing["k"]) | set(missing["v"]))
    if not layers or not context.artifact.layers:
        return
    tensors = tuple(tensor for tensor in TENSORS if missing[tensor])
    yield Finding(
        id="missing-layers",
        severity="error",
        message=f"{_what(tensors)} is shipped in {layer_ranges(layers)} of {context.num_layers}; the engine "
        f"uses {_what_happens(context, layers)} there",
        action="Calibrate every layer, or leave these layers unquantized (vLLM: "
        f"--kv-cache-dtype-skip-layers {' '.join(map(str, layers))}).",
        layers=tuple(layers),
        tensors=tensors,
        evidence=(
            {
                "num_layers": context.num_layers,
                "num_layers_without_k": len(missing["k"]),
                "num_layers_without_v": len(missing["v"]),
            },
        ),
    )


def _what(tensors: tuple[Tensor, ...]) -> str:
    return "no scale" if len(tensors) == len(TENSORS) else f"no {tensors[0].upper()} scale"


def _what_happens(context: AuditContext, layers: list[int]) -> str:
    absent = [(n, 0, tensor) for n in layers for tensor in TENSORS if (n, 0, tensor) not in context.shipped]
    used = {context.resolved.scale(*unit).is_default for unit in absent}
    return "1.0" if used == {True} else "1.0 or the other tensor's scale"


RULE: Final = ArtifactRule(
    id="missing-layers",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    follows_loss=True,
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
