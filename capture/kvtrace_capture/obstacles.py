"""Why an engine, a layer or its queries cannot be captured completely: found at the start, told by name.

A layer whose own model leads its cache writes past the hook in a way that only a step shows is found then
(`recorder`, `self_check`).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from vllm.model_executor.layers.attention import Attention

if TYPE_CHECKING:
    from collections.abc import Mapping

_UPDATE_ARGUMENTS: Final = ["layer", "key", "value", "kv_cache", "slot_mapping"]
_FORWARD_ARGUMENTS: Final = ["layer", "query", "key", "value", "kv_cache", "attn_metadata", "output"]
_FUSED_CACHE_WRITES: Final = ("fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache")


class UnsupportedEngineError(RuntimeError):
    """This engine cannot be captured completely, so it does not start with capture on."""


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise UnsupportedEngineError where vLLM's configuration leads cache writes past the hook."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise UnsupportedEngineError(
                f"kvtrace cannot capture with {name} > 1: slots are split over ranks"
            )
    if getattr(parallel, "use_ubatching", False):
        raise UnsupportedEngineError("kvtrace cannot capture with micro-batching (enable_dbo, ubatch_size)")
    for name in _FUSED_CACHE_WRITES:
        if getattr(vllm_config.compilation_config.pass_config, name, False):
            raise UnsupportedEngineError(
                f"kvtrace cannot capture with pass_config.{name}: it fuses the cache write"
            )


def obstacle(name: str, module: Any, vllm_config: Any, groups: Mapping[str, Any]) -> str | None:
    """Return why a layer's K and V would not pass the hook, or None."""
    if type(module) is not Attention:
        return f"it is a {type(module).__name__}; only vLLM's plain decoder attention writes K and V per head"
    if module.attn_type != "decoder":
        return f"its attention is of type {module.attn_type!r}, expected 'decoder'"
    if name not in groups:
        return "it belongs to no KV-cache group"
    backend = module.attn_backend.get_name()
    if module.attn_backend.forward_includes_kv_cache_update:
        return f"backend {backend} writes the cache inside its forward, where the hook cannot see it"
    update = getattr(module.impl, "do_kv_cache_update", None)
    if update is None:
        return f"{type(module.impl).__name__} of backend {backend} has no do_kv_cache_update"
    if list(inspect.signature(update).parameters) != _UPDATE_ARGUMENTS:
        return f"do_kv_cache_update of backend {backend} does not take {', '.join(_UPDATE_ARGUMENTS)}"
    if getattr(module, "kv_cache_update_bypass", False):
        return "its model writes the cache itself (kv_cache_update_bypass), and the hook would not see it"
    if module.use_direct_call and not vllm_config.model_config.enforce_eager:
        return "on this platform torch.compile traces the cache write; start with --enforce-eager"
    return None


def query_obstacle(module: Any, vllm_config: Any) -> str | None:
    """Return why a layer's queries or outputs would not pass the hook, or None."""
    parameters = inspect.signature(module.impl.forward).parameters
    if list(parameters)[: len(_FORWARD_ARGUMENTS)] != _FORWARD_ARGUMENTS:
        backend = module.attn_backend.get_name()
        return f"forward of backend {backend} does not take {', '.join(_FORWARD_ARGUMENTS)}"
    if getattr(vllm_config.compilation_config.pass_config, "fuse_attn_quant", False):
        return "pass_config.fuse_attn_quant rounds the attention's output inside it"
    return None
