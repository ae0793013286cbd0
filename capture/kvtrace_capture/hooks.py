"""Finds every attention layer of a loaded model and wraps its cache write, and its attention for queries.

`Attention` looks `impl.do_kv_cache_update` up when it is called, inside an operator that torch.compile does
not look into, so a wrapper on the instance is reached in compiled models too. It sees K after RoPE and V as
they are before the backend quantizes them. Its `impl.forward` is looked up in the same way, by the operator
after that one, and sees Q after RoPE. A layer that cannot be wrapped stops the start-up: a trace has
no silent gaps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase

from kvtrace_capture.drafts import draft_layers
from kvtrace_capture.engine_facts import (
    attention_record,
    layer_record,
    query_comes_in_fp8,
    stored_dtype,
)
from kvtrace_capture.gathered_rows import HookedLayer, QueryLayer
from kvtrace_capture.obstacles import UnsupportedEngineError, obstacle, query_obstacle

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from kvtrace.trace.attention_format import AttentionRecord, QueryMode
    from kvtrace.trace.format import LayerRecord
    from kvtrace_capture.recorder import StepRecorder
    from kvtrace_capture.self_check import CheckedRecorder


@dataclass(frozen=True, slots=True)
class FoundLayer:
    """An attention layer with KV of its own."""

    module: Any
    record: LayerRecord
    hooked: HookedLayer | None
    """None where the sampling rules, or another rank's ownership of its heads, leave it out."""
    queries: QueryLayer | None = None
    """None where queries are not captured, or the sampling rules leave the layer out."""


def find_layers(
    vllm_config: Any,
    kv_cache_config: Any,
    kv_caches: Mapping[str, torch.Tensor],
    wanted: tuple[int, ...] | None,
    tp_rank: int,
    queries: QueryMode = "none",
) -> list[FoundLayer]:
    """Return the model's attention layers by index. A draft model's are not among them (`drafts`).

    wanted: layer indices to capture; None: all. queries: whether their queries are, too.
    Raises UnsupportedEngineError, naming the layer: one that is to be captured cannot be hooked, two have one
    index, or `wanted` names one that this model does not have.
    """
    groups = {
        name: (number, group.kv_cache_spec.block_size)
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
        for name in group.layer_names
    }
    found: dict[int, FoundLayer] = {}
    drafts = left_out(vllm_config)
    for name, module in _attention_layers(vllm_config).items():
        if isinstance(module, MambaBase) or name in drafts:
            continue  # a layer with a state, or a drafter's
        if getattr(module, "kv_sharing_target_layer_name", None) is not None:
            continue  # it reads the cache of an earlier layer and writes none
        index = _layer_index(name)
        if index in found:
            raise UnsupportedEngineError(
                f"layers {found[index].record.name} and {name} have the same index {index}"
            )
        captured = wanted is None or index in wanted
        if captured and (reason := obstacle(name, module, vllm_config, groups)) is not None:
            raise UnsupportedEngineError(f"kvtrace cannot capture layer {name}: {reason}")
        if captured and queries != "none" and (reason := query_obstacle(module, vllm_config)) is not None:
            raise UnsupportedEngineError(
                f'kvtrace cannot capture the queries of layer {name}: {reason}; start with "queries": "none"'
            )
        if not captured and not isinstance(module, Attention):
            continue
        found[index] = _describe(
            module,
            index,
            captured,
            groups.get(name),
            kv_caches.get(name),
            vllm_config,
            tp_rank,
            queries if captured else "none",
        )
    if not found:
        raise UnsupportedEngineError("kvtrace found no attention layer with a KV cache in this model")
    if wanted is not None and vllm_config.parallel_config.pipeline_parallel_size == 1:
        absent = sorted(set(wanted) - set(found))
        if absent:
            raise UnsupportedEngineError(f"layers {absent} are to be captured; the model has {sorted(found)}")
    return [found[index] for index in sorted(found)]


def layers_without_kv(vllm_config: Any) -> list[str]:
    """Return the layers of a hybrid model that keep a state and no K and V (Mamba, linear attention, …)."""
    drafts = left_out(vllm_config)
    layers = _attention_layers(vllm_config).items()
    return sorted(name for name, module in layers if isinstance(module, MambaBase) and name not in drafts)


def left_out(vllm_config: Any) -> tuple[str, ...]:
    """Return the layers of a draft model, which are not captured."""
    return draft_layers(vllm_config, _attention_layers(vllm_config))


def _attention_layers(vllm_config: Any) -> dict[str, Any]:
    """Return the layers with a cache or a state; mixtures of experts are registered beside them."""
    layers = vllm_config.compilation_config.static_forward_context
    return {name: module for name, module in layers.items() if isinstance(module, AttentionLayerBase)}


def wrap_cache_write(module: Any, recorder: StepRecorder | CheckedRecorder) -> None:
    """Let the recorder see each cache write of one layer, after the backend has done it."""
    name, original = module.layer_name, module.impl.do_kv_cache_update

    def do_kv_cache_update(
        layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> Any:
        result = original(layer, key, value, kv_cache, slot_mapping)
        recorder.take(name, key, value, slot_mapping)
        return result

    module.impl.do_kv_cache_update = do_kv_cache_update


def wrap_attention(module: Any, recorder: StepRecorder | CheckedRecorder, *, with_output: bool) -> None:
    """Let the recorder see the queries of one layer before its backend does, and then its output."""
    name, original = module.layer_name, module.impl.forward

    def forward(
        layer: Any, query: torch.Tensor, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, *rest: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        recorder.take_query(name, "q", query)
        result = original(layer, query, key, value, kv_cache, attn_metadata, *rest, **named)
        if with_output:
            recorder.take_query(name, "o", named["output"] if "output" in named else rest[0])
        return result

    module.impl.forward = forward


def decoder_layer(name: str) -> str:
    """Return the name of the layer that an attention belongs to.

    >>> decoder_layer("model.layers.3.self_attn.attn")
    'model.layers.3'
    """
    found = re.match(r"(?:.*?\.)?\d+(?=\.|$)", name)
    return found[0] if found else name


def _layer_index(name: str) -> int:
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    if len(numbers) != 1:
        raise UnsupportedEngineError(
            f"kvtrace cannot tell the index of layer {name}: expected one number in its name"
        )
    return int(numbers[0])


def _describe(
    module: Any,
    index: int,
    captured: bool,
    group: tuple[int, int] | None,
    kv_cache: torch.Tensor | None,
    vllm_config: Any,
    tp_rank: int,
    queries: QueryMode,
) -> FoundLayer:
    kv_heads, is_owner = _global_kv_heads(module, vllm_config, tp_rank)
    captured = captured and is_owner
    number, block_size = group or (0, vllm_config.cache_config.block_size)
    record = layer_record(
        module,
        index=index,
        kv_heads=kv_heads,
        block_size=block_size,
        captured=captured,
        kv_cache=kv_cache,
        attention=_attention(module, kv_heads, tp_rank) if queries != "none" else None,
    )
    hooked = HookedLayer(
        index=index,
        group=number,
        k_shape=(module.num_kv_heads, module.head_size),
        v_shape=(module.num_kv_heads, module.head_size_v),
        dtype=stored_dtype(module.dtype),
    )
    asked = QueryLayer(
        index=index,
        group=number,
        q_shape=(module.num_heads, module.head_size),
        o_shape=(module.num_heads, module.head_size_v) if queries == "probe" else None,
        dtype=hooked.dtype,
        is_fp8=query_comes_in_fp8(module),
    )
    return FoundLayer(module, record, hooked if captured else None, asked if queries != "none" else None)


def _attention(module: Any, kv_heads: tuple[int, ...], tp_rank: int) -> AttentionRecord:
    """Return how a layer uses its queries; consecutive query heads share a KV head, on each rank."""
    num_heads, a_kv_head = module.num_heads, module.num_heads // module.num_kv_heads
    return attention_record(
        module,
        query_heads=tuple(range(tp_rank * num_heads, (tp_rank + 1) * num_heads)),
        kv_head_of=tuple(kv_heads[head // a_kv_head] for head in range(num_heads)),
    )


def _global_kv_heads(module: Any, vllm_config: Any, tp_rank: int) -> tuple[tuple[int, ...], bool]:
    """Return the layer's KV heads on this rank by their global ids, and whether this rank is to store them.

    With more ranks than KV heads vLLM gives each rank one head and several ranks the same one
    (config/model.py, get_num_kv_heads; consecutive ranks share); the first of them stores it.
    """
    tp_size, local = vllm_config.parallel_config.tensor_parallel_size, module.num_kv_heads
    total = vllm_config.model_config.get_total_num_kv_heads()
    if local == 1 and total < tp_size:
        replicas = tp_size // total
        return (tp_rank // replicas,), tp_rank % replicas == 0
    return tuple(range(tp_rank * local, (tp_rank + 1) * local)), True
