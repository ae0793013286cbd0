"""SGLang's JSON file of scales: vLLM's old schema with `model_type` required.

The content cannot be told from vLLM's, so this format is used only when it is asked for. SGLang falls back
to 1.0 on any error in it, a missing `model_type` among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.formats.contract import Format, PerRank, read_scaling_factors

if TYPE_CHECKING:
    from kvtrace.scales.source import ArtifactSource


def recognizes(source: ArtifactSource) -> bool:
    """Never by itself: see the module's text."""
    del source
    return False


FORMAT = Format(
    "sglang-json",
    recognizes,
    read_scaling_factors,
    native_loader="sglang",
    per_rank=PerRank(read_by=("vllm", "sglang"), needs_every_layer=True),
)
