"""W_O of each layer, from a checkpoint: what turns errors of heads into errors of the residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from kvtrace.errors import ArtifactError
from kvtrace.files.regular import open_regular
from kvtrace.scales.modules import module_of
from kvtrace.scales.names import layer_of
from kvtrace.scales.source import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from kvtrace.scales.safetensors import TensorRef
    from kvtrace.trace.cache_layers import CacheLayers

_SUFFIXES: Final = ("self_attn.o_proj.weight", "attention.wo.weight", "self_attention.dense.weight")
"""Of Llama and its kin; Mistral's own format; Falcon."""
_DTYPES: Final = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def find_projections(checkpoint: Path, layers: CacheLayers) -> dict[int, TensorRef]:
    """Return where each layer's W_O lies, by the layer's index; only headers are read.

    Raises ArtifactError: the checkpoint cannot be read, or two tensors claim to be one layer's.
    """
    found: dict[int, TensorRef] = {}
    for ref in open_source(checkpoint).tensors:
        layer = layer_of(ref.name) if ref.name.endswith(_SUFFIXES) else None
        if layer is None or module_of(ref.name, layer, layers) != "language":
            continue
        if layer in found:
            raise ArtifactError(f"{ref.path}: {ref.name} and {found[layer].name} are both layer {layer}'s")
        found[layer] = ref
    return found


def read_projection(refs: Mapping[int, TensorRef], layer: int, num_inputs: int) -> Tensor | None:
    """Return one layer's W_O, [hidden, query_head · head_dim_v] float32; None where there is none.

    num_inputs: query heads times head_dim_v. Raises ArtifactError: it is quantized, has another shape, or its
    file is cut.
    """
    ref = refs.get(layer)
    if ref is None:
        return None
    if ref.dtype not in _DTYPES:
        raise ArtifactError(
            f"{ref.path}: {ref.name} is {ref.dtype}; expected {', '.join(_DTYPES)}. Give the checkpoint "
            "from which this one was quantized"
        )
    if len(ref.shape) != 2 or ref.shape[1] != num_inputs:
        raise ArtifactError(
            f"{ref.path}: {ref.name} has shape {list(ref.shape)}, the trace's layer {layer} needs "
            f"[hidden, {num_inputs}]; is it the checkpoint of this model?"
        )
    try:
        with open_regular(ref.path) as file:
            file.seek(ref.start)
            raw = bytearray(file.read(ref.end - ref.start))
    except OSError as error:
        raise ArtifactError(f"{ref.path}: cannot be read ({error.strerror})") from error
    if len(raw) != ref.end - ref.start:
        raise ArtifactError(f"{ref.path}: ends inside {ref.name}")
    return torch.frombuffer(raw, dtype=_DTYPES[ref.dtype]).reshape(ref.shape).float()
