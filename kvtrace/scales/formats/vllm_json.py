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
    remark="only vLLM before 0.7 reads this file: in those of today the option is gone, and every scale is "
    "1.0. SGLang reads it (--quantization-param-path) where it names a model_type",
    remark_for="vllm",
)
