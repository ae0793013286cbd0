"""SGLang's rules for scales in checkpoints: the base method's, with differences of its own.

Every method gives its `RadixAttention` layers one, MLA's among them: fp8, ModelOpt where a KV algorithm is
declared, and Quark. compressed-tensors does so since sglang#35455 (August 2026) for static, symmetric,
per-tensor FP8; any other scheme is skipped with a warning, and before that every one was. A scale of 0 counts
as missing, and there is no Q scale. Source: SGLang 0.5, `python/sglang/srt/layers/quantization/`:
`kv_cache.py` (`BaseKVCacheMethod`), `fp8.py`, `modelopt_quant.py` and `quark/quark.py`, `get_quant_method`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.loaders import base_method, compressed_tensors_method

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact
    from kvtrace.scales.loaders.contract import HeadLayout, LayerScales, Rule
    from kvtrace.scales.resolved import LoaderSetup


def rule_for(artifact: ScaleArtifact, quant_method: str) -> Rule | None:
    """Return the rule for a declared method; None: SGLang drops its KV-cache scales."""
    if compressed_tensors_method.serves(quant_method):
        return None if _unsupported(artifact) else _apply
    return _apply if base_method.serves(quant_method) else None


def why_not(artifact: ScaleArtifact) -> str:
    """Return why `rule_for` gives none."""
    method = artifact.scheme.quant_method
    if method is not None and compressed_tensors_method.serves(method):
        return (
            f"{_unsupported(artifact)}: SGLang takes static, symmetric, per-tensor FP8 alone (since "
            "sglang#35455, before that none), skips the scheme with a warning and uses 1.0"
        )
    return f"SGLang loads no KV-cache scales for the quantization method {method!r}: 1.0 is used"


def _unsupported(artifact: ScaleArtifact) -> str | None:
    scheme = artifact.scheme
    if not scheme.has_kv_scheme:
        return None if artifact.model.num_layers is None else "config.json declares no kv_cache_scheme"
    strategy = compressed_tensors_method.strategy_of(artifact)
    if strategy != "tensor":
        return f"kv_cache_scheme has strategy {strategy!r}"
    if scheme.dynamic or scheme.symmetric is False:
        return "kv_cache_scheme is dynamic or not symmetric"
    return None


def _apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: LoaderSetup) -> LayerScales:
    found = base_method.apply(artifact, layer, layout, setup)
    found.scales.pop("q", None)
    return found
