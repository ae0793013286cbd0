"""The model types whose cache layout kvtrace knows, and which of their layers look back over a window.

Those with a case in tests/support/capacity_cases.py were built by vLLM 0.32 and compared layer by layer; the
others here have the same attention classes. What has a layout of its own, such as sparse attention with an
index beside it, is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvtrace.capacity.states import STATES
from kvtrace.errors import InputError
from kvtrace.trace.cache_layers import layer_kinds

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"

PLAIN: Final = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "gemma",
        "phi3",
        "granite",
        "granitemoe",
        "smollm3",
        "glm4",
        "glm4_moe",
        "minimax_m2",
        "olmo2",
    }
)
"""All layers alike unless `layer_types` or a window for all says otherwise."""

INTERLEAVED: Final = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "cohere2": 4,
    "olmo3": 4,
    "exaone4": 4,
    "llama4_text": 4,
}
"""Every so-manieth layer attends in full where `layer_types` does not list them; the others have a window."""

LATENT: Final = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})

_OTHER_LAYOUTS: Final = {
    "deepseek_v32": "sparse attention keeps an index beside the latents",
    "glm_moe_dsa": "sparse attention keeps an index beside the latents",
    "deepseek_v4": "compressed latents, an index and a window in pages of their own",
    "deepseek_v41": "compressed latents, an index and a window in pages of their own",
    "qwen4_exp": "several kinds of state and an index in pages of their own",
    "kimi_k3": "several kinds of state in pages of their own",
    "minimax_m3": "sparse attention keeps an index beside K and V",
    "whisper": "cross attention keeps the encoder's K and V",
}

INSTEAD: Final = (
    "take the engine's own numbers: kvtrace capacity --from-log FILE, or --from-metrics FILE with what "
    "/metrics says (vllm:cache_config_info)"
)


def check_known(model_type: str, path: object) -> None:
    """Raise InputError where kvtrace does not know a model type's layout."""
    if model_type in PLAIN | INTERLEAVED.keys() | LATENT | STATES.keys():
        return
    reason = _OTHER_LAYOUTS.get(model_type, "kvtrace does not know what its layers keep")
    raise InputError(f"{path}: model_type {model_type[:60]!r}: {reason}; {INSTEAD}")


def kinds_of(text: Mapping[str, Any], num_layers: int) -> list[str]:
    """Return each layer's kind in the words of `layer_types`.

    Raises KeyError: a pattern is no number.
    Source: transformers' configurations, and vLLM's models where they read `sliding_window` alone.
    """
    listed = layer_kinds(text)
    if len(listed) == num_layers and all(kind is not None for kind in listed):
        return [str(kind) for kind in listed]
    model_type = str(text.get("model_type"))
    if model_type in INTERLEAVED:
        every = text.get("sliding_window_pattern") or INTERLEAVED[model_type]
        every = len(every) if isinstance(every, str) else every
        if type(every) is not int or every < 1:
            raise KeyError("sliding_window_pattern")
        return [_FULL if (n + 1) % every == 0 else _SLIDING for n in range(num_layers)]
    if _is_qwen(model_type) and text.get("use_sliding_window") is True:
        first = text.get("max_window_layers", 28)
        if type(first) is not int or first < num_layers:
            raise InputError(f"{model_type} with windows in some layers: vLLM does not take it")
        return [_FULL] * num_layers
    return [_SLIDING if window_of_all(text) else _FULL] * num_layers


def window_of_all(text: Mapping[str, Any]) -> int | None:
    """Return the window that every layer has where `layer_types` lists none, None for full attention."""
    window = text.get("sliding_window")
    if type(window) is not int or window < 1 or text.get("use_sliding_window") is False:
        return None
    return None if _is_qwen(str(text.get("model_type"))) else window


def _is_qwen(model_type: str) -> bool:
    """Return whether a window counts only where `use_sliding_window` says so."""
    return model_type.startswith(("qwen2", "qwen3"))
