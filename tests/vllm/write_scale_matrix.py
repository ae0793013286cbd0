"""Write tests/scales/matrix.json: what vLLM's own loader makes of every family × producer.

Run in the vLLM environment: PYTHONPATH=tests python tests/vllm/write_scale_matrix.py. No model is built: the
quantization method is asked for each attention layer, names go through the model's and the loader's maps,
and the method ends the loading as it does in an engine with an FP8 cache.
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
from support.scale_matrix import FAMILIES, PRODUCERS, Family, Producer, scales_of
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.model_loader.weight_utils import default_weight_loader, maybe_remap_kv_scale_name
from vllm.model_executor.models.utils import WeightsMapper

OUT = Path(__file__).parents[1] / "scales" / "matrix.json"


def bare_layer(family: Family) -> Any:
    kind = MLAAttention if family.is_latent else Attention
    layer = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.kv_cache_dtype, layer.num_kv_heads = "fp8", 2
    for name in ("k", "v", "q", "prob"):
        layer.register_buffer(f"_{name}_scale", torch.tensor(1.0))
        setattr(layer, f"_{name}_scale_float", 1.0)
        setattr(layer, f"_{name}_scale_cpu", torch.tensor(1.0))
    return layer


def model_class(family: Family) -> Any:
    """Return vLLM's class, of which the map of weights' names is asked alone."""
    module, class_name = family.model_class.split(":")
    return getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), class_name)


def method_name(quantization: dict[str, Any]) -> str:
    """Return what `ModelConfig` chooses: ModelOpt's mixed precision has a method of its own."""
    mixed = str(quantization.get("quant_algo")).upper() == "MIXED_PRECISION"
    return "modelopt_mixed" if mixed else quantization["quant_method"]


def loaded(family: Family, producer: Producer) -> dict[str, Any]:
    quantization = copy.deepcopy(producer.quantization)
    try:
        config = get_quantization_config(method_name(quantization)).from_config(quantization)
        layers = {n: bare_layer(family) for n in family.attending}
        methods = {n: config.get_quant_method(layer, family.held.format(n)) for n, layer in layers.items()}
        for n, method in methods.items():
            if method is not None:
                method.create_weights(layers[n])
    except (ValueError, KeyError, NotImplementedError) as error:
        return {"refused": type(error).__name__}
    parameters = {
        f"{family.held.format(n)}.{name}": parameter
        for n, layer in layers.items()
        for name, parameter in layer.named_parameters()
    }
    model = model_class(family)
    own = getattr(model, "hf_to_vllm_mapper", None) if family.mapper_is_of_the_model else None
    mapper = (own or WeightsMapper()) | config.get_cache_scale_mapper()
    for name, value in scales_of(family, producer).items():
        target = mapper.map_name(name)
        if target is not None and family.remaps_again:
            target = maybe_remap_kv_scale_name(target, parameters)
        if target in parameters:
            parameter = parameters[target]
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, torch.tensor([value]))
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

    found = {
        family.name: {producer.name: loaded(family, producer) for producer in PRODUCERS}
        for family in FAMILIES
    }
    OUT.write_text(json.dumps({"vllm": vllm.__version__, "families": found}, indent=1) + "\n")
    print(f"{len(FAMILIES)} families × {len(PRODUCERS)} producers written to {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
