"""Write tests/scales/matrix.json: what vLLM's own loader makes of every family × producer.

Run in the vLLM environment: PYTHONPATH=tests python tests/vllm/write_scale_matrix.py. No weights are made:
the quantization method is asked for each attention layer, the model's own `load_weights` runs over a model of
attention layers alone, and the method ends the loading as it does in an engine with such a cache.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from support.scale_matrix import CELLS, FAMILIES, Family, Producer, scales_of
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.quantization import get_quantization_config

OUT = Path(__file__).parents[1] / "scales" / "matrix.json"


ABSENT: dict[str, Any] = {
    "audio_tower": None,
    "vision_model": None,
    "is_fused_shared_expert_enabled": False,
    "num_redundant_experts": 0,
    "n_redundant_experts": 0,
    "num_experts": 0,
    "use_mha": False,
    "use_data_parallel": False,
}
"""What models ask of themselves as they load: here are neither towers nor experts."""


def bare_layer(family: Family, cache_dtype: str) -> Any:
    kind = MLAAttention if family.is_latent else Attention
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.kv_cache_dtype, layer.num_kv_heads = cache_dtype, 2
    for name in ("k", "v", "q", "prob"):
        layer.register_buffer(f"_{name}_scale", torch.tensor(1.0))
        setattr(layer, f"_{name}_scale_float", 1.0)
        setattr(layer, f"_{name}_scale_cpu", torch.tensor(1.0))
    return layer


def imported(name: str) -> Any:
    """Return vLLM's class of a `module:class`."""
    module, class_name = name.split(":")
    return getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), class_name)


def bare(kind: Any, quant_config: Any) -> Any:
    """Return a model without weights: what its `load_weights` asks of its configuration is anything."""
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    if kind is not torch.nn.Module:
        made.quant_config = quant_config
        made.config = MagicMock(tie_word_embeddings=False, num_nextn_predict_layers=0)
        for name, value in ABSENT.items():
            setattr(made, name, value)
    return made


def model_of(family: Family, layers: dict[int, Any], quant_config: Any) -> Any:
    """Return the family's model with the attention layers at their places, and nothing else."""
    root = bare(imported(family.model_class), quant_config)
    for n, layer in layers.items():
        *parts, last = family.held.format(n).split(".")
        at, path = root, ""
        for part in parts:
            path = f"{path}.{part}".lstrip(".")
            if not hasattr(at, part):
                kind = imported(family.inner[path]) if path in family.inner else torch.nn.Module
                at.add_module(part, bare(kind, quant_config))
            at = getattr(at, part)
        at.add_module(last, layer)
    return root


def method_name(quantization: dict[str, Any]) -> str:
    """Return what `ModelConfig` chooses: ModelOpt has a method for each kind of weights."""
    declared: str = quantization["quant_method"]
    for name in ("modelopt", "modelopt_fp4", "modelopt_mixed"):
        if found := get_quantization_config(name).override_quantization_method(quantization, None):
            return found
    return declared


def loaded(family: Family, producer: Producer) -> dict[str, Any]:
    """Return each layer's K, V and Q as the engine would use them, or why it does not start.

    Where a name of another module stops the loading, that module is not here in full: it is left out.
    """
    found = attempt(family, producer, scales_of(family, producer))
    if found.get("refused") in ("ValueError", "KeyError"):
        return attempt(family, producer, scales_of(family, producer, others=False))
    return found


def attempt(family: Family, producer: Producer, stored: dict[str, float]) -> dict[str, Any]:
    quantization = copy.deepcopy(producer.quantization)
    try:
        config = (
            get_quantization_config(method_name(quantization)).from_config(quantization)
            if quantization
            else None
        )
        layers = {n: bare_layer(family, producer.cache_dtype) for n in family.attending}
        methods = {
            n: config.get_quant_method(layer, family.held.format(n)) if config else None
            for n, layer in layers.items()
        }
        for n, method in methods.items():
            if method is not None:
                method.create_weights(layers[n])
        model = model_of(family, layers, config)
        model.load_weights((name, torch.tensor([value])) for name, value in stored.items())
    except (ValueError, KeyError, NotImplementedError) as error:
        return {"refused": type(error).__name__}
    for n, method in methods.items():
        if method is not None:
            method.process_weights_after_loading(layers[n])
    return {
        str(n): [
            layer._k_scale_float,
            None if family.is_latent else layer._v_scale_float,
            layer._q_scale_float,
        ]
        for n, layer in layers.items()
    }


def stand_in_for_torchvision() -> None:
    """Let models that process images be imported where torchvision is absent: none is run."""
    if importlib.util.find_spec("torchvision") is None:
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
            stub = MagicMock()
            stub.__spec__, stub.__path__ = ModuleSpec(name, None), []
            sys.modules[name] = stub


def main() -> int:
    import vllm

    stand_in_for_torchvision()

    found: dict[str, dict[str, Any]] = {family.name: {} for family in FAMILIES}
    for family, producer in CELLS:
        found[family.name][producer.name] = loaded(family, producer)
    OUT.write_text(json.dumps({"vllm": vllm.__version__, "families": found}, indent=1) + "\n")
    print(f"{len(CELLS)} cells of {len(FAMILIES)} families written to {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
