"""Small checkpoints for tests, written by the safetensors library itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MODEL = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def scheme(**fields: Any) -> dict[str, Any]:
    """Return a `kv_cache_scheme` as llm-compressor writes it."""
    return {
        "num_bits": 8,
        "type": "float",
        "strategy": "tensor",
        "dynamic": False,
        "symmetric": True,
    } | fields


def checkpoint(
    directory: Path,
    tensors: Mapping[str, Sequence[float] | float | torch.Tensor],
    *,
    quantization: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    file: str = "model.safetensors",
) -> Path:
    """Write one file of tensors and, unless `model` is {}, a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            name: value.contiguous() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=dtype)
            for name, value in tensors.items()
        },
        directory / file,
    )
    config = dict(MODEL if model is None else model)
    if config:
        if quantization is not None:
            config["quantization_config"] = dict(quantization)
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def compressed(directory: Path, scales: Mapping[str, Any], **fields: Any) -> Path:
    """Write a compressed-tensors checkpoint. scales: `0.k` → value(s); fields: of the scheme."""
    return checkpoint(
        directory,
        {f"model.layers.{key[:-2]}.self_attn.{key[-1]}_scale": value for key, value in scales.items()},
        quantization={"quant_method": "compressed-tensors", "kv_cache_scheme": scheme(**fields)},
    )
