"""Write tests/capacity/{plans,pages}.json: the KV cache that vLLM's own planning gives each case.

Run in the vLLM environment: PYTHONPATH=tests python tests/vllm/write_capacity.py. No engine starts:
vLLM builds each model without memory (on PyTorch's meta device), its attention layers say what they keep,
and its planning functions make blocks of that. For a GPU the layers are given the backends and cache dtypes
that they would have there, and the alignment of vLLM's platforms with a GPU is asked.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from support.capacity_cases import CASES, Case
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import (
    destroy_model_parallel,
    get_tp_group,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.attention.mla_attention import MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype, set_default_torch_dtype
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_capacity,
    get_kv_cache_configs,
)
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    get_kv_quant_mode,
    iter_layer_specs,
)
from vllm.v1.worker.utils import customize_attention_spec

registry._run_in_subprocess = lambda ask: ask()  # another process a model would take twenty seconds
OUT = Path(__file__).parents[1] / "capacity"
BACKENDS = {
    "auto": AttentionBackendEnum.FLASH_ATTN,
    "fp8": AttentionBackendEnum.FLASH_ATTN,
    "fp8_per_token_head": AttentionBackendEnum.TRITON_ATTN,
    "int8_per_token_head": AttentionBackendEnum.TRITON_ATTN,
    "int4_per_token_head": AttentionBackendEnum.TRITON_ATTN,
    "nvfp4": AttentionBackendEnum.FLASHINFER,
    "nvfp4_4over6": AttentionBackendEnum.FLASHINFER,
    "turboquant_k8v4": AttentionBackendEnum.TURBOQUANT,
    "turboquant_4bit_nc": AttentionBackendEnum.TURBOQUANT,
    "turboquant_k3v4_nc": AttentionBackendEnum.TURBOQUANT,
    "turboquant_3bit_nc": AttentionBackendEnum.TURBOQUANT,
    "fp8_e5m2": AttentionBackendEnum.FLASHINFER,
}
LATENT_BACKENDS = {"auto": AttentionBackendEnum.TRITON_MLA, "fp8": AttentionBackendEnum.FLASHMLA}
"""FLASH_ATTN_MLA, which comes first, cannot be imported without a GPU; it takes the same blocks."""
PAGE_BLOCK, PAGE_HEADS = 16, 2
HEAD_DIMS = (64, 96, 128, 256)
PAGED = (*BACKENDS, "ultraquant_4bit")


def backend_class(backend: AttentionBackendEnum) -> Any:
    """Return a backend's class; FlashInfer's imports kernels that no CPU has, and needs none to plan."""
    if backend is not AttentionBackendEnum.FLASHINFER:
        return backend.get_class()
    absent = ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils")
    with patch.dict(sys.modules, {name: MagicMock(__spec__=ModuleSpec(name, None)) for name in absent}):
        return backend.get_class()


def built(case: Case) -> Any:
    """Return the configuration of a model that vLLM built on the meta device."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(case.full_config))
    settings = case.settings
    config = EngineArgs(model=str(folder), **case.engine_arguments).create_engine_config()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            store = f"file://{tempfile.mkdtemp()}/store"
            init_distributed_environment(1, 0, store, 0, "gloo")
        destroy_model_parallel()
        initialize_model_parallel(1, 1)  # by the model: experts have a group of their own
        get_tp_group().world_size = settings["tp"]
        with torch.device("meta"), set_default_torch_dtype(config.model_config.dtype):
            initialize_model(vllm_config=config, model_config=config.model_config)
        get_tp_group().world_size = 1
    return config


def give_cache_dtype(config: Any, case: Case) -> None:
    """Set the cache dtype as the engine's arguments would, and each layer's backend as on its device."""
    settings = case.settings
    dtype, skip = settings["cache_dtype"], list(settings["skip_layers"])
    if dtype.startswith("turboquant"):
        skip = sorted({*skip, *TurboQuantConfig.get_boundary_skip_layers(config.model_config)})
    cache = config.cache_config
    cache.cache_dtype, cache.kv_cache_dtype_skip_layers = dtype, skip
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        if not isinstance(layer, Attention | MLAAttention):
            continue
        is_window = getattr(layer, "sliding_window", None) is not None and "sliding_window" in skip
        native = is_window or str(extract_layer_index(name)) in skip
        layer.kv_cache_dtype = "auto" if native else dtype
        layer.kv_cache_torch_dtype = kv_cache_dtype_str_to_dtype(layer.kv_cache_dtype, config.model_config)
        if settings["platform"] == "gpu":
            known = LATENT_BACKENDS if isinstance(layer, MLAAttention) else BACKENDS
            layer.attn_backend = backend_class(known[layer.kv_cache_dtype])


def align_blocks(config: Any, case: Case) -> None:
    """Round the block size up, as the platform does once the layers are known."""
    if case.settings["platform"] == "gpu":
        cache = config.cache_config
        if case.settings["block_size"] is None:
            cache.block_size, cache.user_specified_block_size = cache.DEFAULT_BLOCK_SIZE, False
        config.scheduler_config.async_scheduling = True
        Platform.update_block_size_for_backend(config)
    else:
        from vllm.platforms import current_platform

        current_platform.update_block_size_for_backend(config)


def layer_specs(config: Any) -> dict[str, Any]:
    """Return what each layer with a cache of its own keeps, as the model runner collects it."""
    specs = {}
    for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items():
        if getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        spec = layer.get_kv_cache_spec(config)
        if isinstance(spec, AttentionSpec):
            spec = customize_attention_spec(layer.get_attn_backend(), spec)
        if spec is not None:
            specs[name] = spec
    return specs


def planned(case: Case) -> dict[str, Any]:
    """Return blocks, tokens and groups, or vLLM's reason why there are none."""
    try:
        config = built(case)
    except AssertionError as error:
        if "not supported" not in str(error):
            raise
        return {"refused": str(error)[:300]}
    give_cache_dtype(config, case)
    try:
        align_blocks(config, case)
        specs = layer_specs(config)
        config.cache_config.kv_cache_layout = "LBNHC"
        layers = [
            [extract_layer_index(name), spec.page_size_bytes, spec.block_size, spec.real_page_size_bytes]
            for name, spec in specs.items()
        ]
        (plan,) = get_kv_cache_configs(config, [specs], [case.budget])
    except (AssertionError, NotImplementedError, ValueError) as error:
        return {"refused": f"{type(error).__name__}: {error}"[:300]}
    plan = generate_scheduler_kv_cache_config([plan])
    num_tokens, concurrency = get_kv_cache_capacity(config, plan)
    return {
        "block_size": config.cache_config.block_size,
        "num_blocks": plan.num_blocks,
        "bytes_per_block": plan.kv_cache_tensors[0].size // plan.num_blocks,
        "num_tokens": num_tokens,
        "concurrency": concurrency,
        "layers": layers,
        "groups": [
            [len(group.layer_names), next(iter(iter_layer_specs(group.kv_cache_spec))).block_size]
            for group in plan.kv_cache_groups
        ],
    }


def page_bytes(dtype: str, head_dim: int) -> int | str:
    """Return the bytes of a page of PAGE_BLOCK tokens and PAGE_HEADS KV heads, or why there is none."""
    spec = FullAttentionSpec(
        block_size=PAGE_BLOCK,
        num_kv_heads=PAGE_HEADS,
        head_size=head_dim,
        dtype=torch.bfloat16 if dtype == "auto" else kv_cache_dtype_str_to_dtype(dtype, None),
        kv_quant_mode=get_kv_quant_mode(dtype),
    )
    if dtype == "ultraquant_4bit":  # its backend needs a Triton with a device to be imported
        from vllm.v1.attention.ops.ultraquant.format import slot_size

        return replace(spec, state_content_bytes=slot_size(head_dim)).page_size_bytes
    return backend_class(BACKENDS[dtype]).customize_spec(spec).page_size_bytes


def write(name: str, content: dict[str, Any]) -> None:
    """Write one file, a case a line."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    (OUT / name).write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def main() -> None:
    """Plan the cases, or those whose names have a given part; write unless names or --print are given."""
    parts = [argument for argument in sys.argv[1:] if argument != "--print"]
    plans = {}
    for case in CASES:
        if not parts or any(part in case.name for part in parts):
            plans[case.name] = planned(case)
            print(f"{case.name}\t{json.dumps(plans[case.name])}", flush=True)
    if sys.argv[1:]:
        return
    write("plans.json", plans)
    write("pages.json", {dtype: {str(dim): page_bytes(dtype, dim) for dim in HEAD_DIMS} for dtype in PAGED})


if __name__ == "__main__":
    main()
