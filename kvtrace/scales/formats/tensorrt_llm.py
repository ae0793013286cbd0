"""TensorRT-LLM checkpoints: `…attention.{kv,k,v}_cache_scaling_factor`, one safetensors file per rank.

Where separate K and V factors stand beside the merged one, they are used. Source: TensorRT-LLM's checkpoint
format.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kvtrace.scales.artifact import DeclaredScheme
from kvtrace.scales.formats.contract import Format, PerRank, Reading, read_tensors, text_of
from kvtrace.scales.number_format import named_format

if TYPE_CHECKING:
    from kvtrace.scales.artifact import ScaleTensor
    from kvtrace.scales.safetensors import TensorRef
    from kvtrace.scales.source import ArtifactSource

_FACTOR: Final = re.compile(r"\.(kv|k|v)_cache_scaling_factor$")
_RANK_FILE: Final = re.compile(r"rank([0-9]{1,4})\.safetensors$")


def recognizes(source: ArtifactSource) -> bool:
    """By the names."""
    return any(_rule(ref.name) for ref in source.tensors)


def read(source: ArtifactSource) -> Reading:
    """Read the factors of every rank."""
    reading = read_tensors(source, _rule, _rank_of)
    inner = (source.config or {}).get("quantization")
    algorithm = text_of(inner.get("kv_cache_quant_algo")) if isinstance(inner, dict) else None
    scheme = DeclaredScheme(
        has_kv_scheme=algorithm is not None,
        dynamic=False,
        algorithm=algorithm,
        number_format=named_format(algorithm) if algorithm else None,
    )
    return replace(reading, scheme=scheme, num_ranks=len({s.rank for s in reading.scales}))


def _rule(name: str) -> ScaleTensor | None:
    match = _FACTOR.search(name)
    if match is None:
        return None
    return "kv" if match[1] == "kv" else "k" if match[1] == "k" else "v"


def _rank_of(ref: TensorRef) -> int:
    match = _RANK_FILE.search(ref.path.name)
    return int(match[1]) if match else 0


FORMAT = Format(
    "tensorrt-llm",
    recognizes,
    read,
    native_loader="tensorrt-llm",
    per_rank=PerRank(read_by=("tensorrt-llm",), needs_every_layer=False),
)
