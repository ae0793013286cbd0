"""vLLM's method for an MLA cache: one scale for the latent, under K's name; V's does not exist.

ModelOpt alone gives `MLAAttention` a KV-cache method; fp8, compressed-tensors, Quark and ModelOpt's mixed
precision ask for `Attention`, which it is not. Source: vLLM 0.32, `get_quant_method` of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.loaders import base_method
from kvtrace.scales.loaders.contract import loaded

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleArtifact
    from kvtrace.scales.loaders.contract import HeadLayout, LayerScales
    from kvtrace.scales.resolved import LoaderSetup


def serves(quant_method: str) -> bool:
    """Whether vLLM's method of that name loads scales of an MLA layer."""
    return quant_method.startswith("modelopt") and quant_method != "modelopt_mixed"


def apply(artifact: ScaleArtifact, layer: int, layout: HeadLayout, setup: LoaderSetup) -> LayerScales:
    """Return the latent's scale as the base method gives K's; that V has none is no news."""
    found = base_method.apply(artifact, layer, layout, setup)
    if loaded(artifact, layer, "v") is None:
        found.notes = [note for note in found.notes if note.kind != "duplicated"]
    return found
