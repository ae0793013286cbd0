"""Names that no engine's mapper knows: loaded by nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.example import ArtifactExample, ArtifactRule
from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.plain_text import plain
from kvtrace.scales.loaders.contract import unmapped
from kvtrace.scales.loaders.loader import VLLM
from kvtrace.scales.names import layer_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.artifact.context import AuditContext
    from kvtrace.scales.artifact import UnmatchedName


def check(context: AuditContext) -> Iterator[Finding]:
    """Yield a finding for names that look like KV-cache scales: an error where K or V has no other scale."""
    unmatched = [u for u in context.artifact.unmatched if u.why != "other-format"]
    names = [u.name for u in unmatched]
    dropped = unmapped(context.artifact)
    names += [s.key for s in dropped]
    if not names:
        return
    of_the_model = [u.name for u in unmatched if u.why != "other-module"] + [s.key for s in dropped]
    layers = {layer_of(name) for name in of_the_model} - {None}
    mapped = [s for s in context.artifact.scales if s not in dropped and s.tensor in ("k", "v", "kv")]
    used = {(scale.layer, tensor) for scale in mapped for tensor in scale.tensor}  # `kv` is both
    orphaned = sorted(
        layer for layer in layers if layer is not None and not {(layer, "k"), (layer, "v")} <= used
    )
    yield Finding(
        id="unmatched-names",
        severity="error" if orphaned else "warning",
        message=f"{len(names)} names look like KV-cache scales and {_become(context)}, such "
        f"as {plain(names[0], 100)}{_why(unmatched)}",
        action="Rename them to `…self_attn.k_scale` and `…self_attn.v_scale`, list their file in the "
        "checkpoint's index, or export again with a current tool."
        if of_the_model
        else "Export again without scales for these modules: engines may stop at names they do not know.",
        layers=tuple(orphaned),
        evidence=({"num_names": len(names), "names": [plain(name, 200) for name in names[:50]]},),
    )


def _become(context: AuditContext) -> str:
    """Return what the engine does at such names; one that it merely has no place for is passed over."""
    is_unknown = any(one.why == "unknown-name" for one in context.artifact.unmatched)
    if context.resolved.setup.loader is VLLM and (is_unknown or unmapped(context.artifact)):
        return "are loaded by nothing: vLLM 0.32 stops loading at a name that it does not know"
    return "are dropped silently by the engine"


def _why(unmatched: list[UnmatchedName]) -> str:
    reasons = {one.reason for one in unmatched}
    return f" ({plain(reasons.pop(), 120)})" if len(reasons) == 1 else ""


RULE: Final = ArtifactRule(
    id="unmatched-names",
    headline="The engine drops scales whose names it does not know",
    about="not loaded",
    role="cause",
    tier=Tier.fault,
    explains=("symptom", "drift"),
    mended_by="look",
    check=check,
    invalid=(ArtifactExample(names={"model.layers.0.self_attn.key_scale": 0.5}),),
    valid=(ArtifactExample(names={"model.layers.0.self_attn.q_scale": 0.5}),),
)
