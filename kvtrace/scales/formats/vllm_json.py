"""vLLM's old JSON file of scales: {"model_type", "kv_cache": {"dtype", "scaling_factor": {rank: {layer:
number}}}}.

One number serves K and V. The option that read it is gone from the vLLM of today; SGLang reads the same
schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.formats.contract import Format, PerRank, read_scaling_factors

if TYPE_CHECKING:
    from kvtrace.scales.source import ArtifactSource


def recognizes(source: ArtifactSource) -> bool:
    """By being one JSON file: nothing in the content tells it from SGLang's."""
    return source.document is not None


FORMAT = Format(
    "vllm-json",
    recognizes,
    read_scaling_factors,
    per_rank=PerRank(read_by=("vllm", "sglang"), needs_every_layer=True),
    remark="only old versions of vLLM read this file; the option is gone from those of today",
    remark_for="vllm",
)
