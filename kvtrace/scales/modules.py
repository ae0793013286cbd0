"""Which module of a checkpoint a scale belongs to: by the prefix of its name and the configuration.

A multi-modal model's towers, an encoder and a draft head number their layers from 0 as well; none of these is
a layer of the language model. Source: the parameter names of vLLM 0.32's models, and of Mistral's format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kvtrace.trace.cache_layers import CacheLayers

ModuleKind = Literal["language", "draft", "vision", "audio", "encoder", "cross-attention", "unknown"]

TITLES: Final[dict[ModuleKind, str]] = {
    "language": "the language model",
    "draft": "the draft head, loaded where it is used for speculative decoding",
    "vision": "the vision tower, whose attention keeps no KV cache",
    "audio": "the audio tower, whose attention keeps no KV cache",
    "encoder": "the encoder, whose attention keeps no KV cache",
    "cross-attention": "the cross-attention, whose cache holds the encoder's keys and values",
    "unknown": "a module that is not known as the language model",
}
WITHOUT_CACHE: Final[tuple[ModuleKind, ...]] = ("vision", "audio", "encoder", "unknown")
_WORDS: Final[dict[ModuleKind, frozenset[str]]] = {
    "draft": frozenset(["mtp", "nextn", "eagle", "eagle3", "medusa", "draft", "drafter", "speculator"]),
    "vision": frozenset(["vision", "visual", "vit", "image", "img", "vpm", "siglip", "clip"]),
    "audio": frozenset(
        ["audio", "speech", "sound", "apm", "conformer", "talker", "token2wav", "code2wav", "tts"]
    ),
}
_LANGUAGE: Final = frozenset(
    [
        "model",
        "language_model",
        "text_model",
        "llm",
        "backbone",
        "transformer",
        "decoder",
        "layers",
        "h",
        "blocks",
        "thinker",
        "gpt_neox",
        "lm",
        "text",
        "base_model",
        "module",
        "language",
    ]
)
_CROSS: Final = frozenset(("encoder_attn", "cross_attn", "crossattention", "cross_attention"))
_BETWEEN_WORDS: Final = re.compile(r"[._]")


def module_of(name: str, layer: int, layers: CacheLayers) -> ModuleKind:
    """Return the module that a tensor with one layer number belongs to.

    >>> from kvtrace.trace.cache_layers import CacheLayers
    >>> module_of("mtp.layers.0.self_attn.k_scale", 0, CacheLayers())
    'draft'
    >>> module_of("model.layers.8.self_attn.k_scale", 8, CacheLayers(num_layers=8, num_draft_layers=1))
    'draft'
    """
    parts = name.split(".")
    at = parts.index(str(layer)) if str(layer) in parts else 0
    before, after = parts[:at], parts[at + 1 :]
    words = set(_BETWEEN_WORDS.split(".".join(before).lower()))
    for kind, known in _WORDS.items():
        if words & known:
            return kind
    if not _CROSS.isdisjoint(after):
        return "cross-attention"
    if "encoder" in before:  # ChatGLM calls its language model so
        return "language" if before[0] == "transformer" else "encoder"
    if not set(before) <= _LANGUAGE:
        return "unknown"
    last = layers.num_layers
    is_draft = last is not None and last <= layer < last + layers.num_draft_layers
    return "draft" if is_draft else "language"


def prefix_of(name: str, layer: int) -> str:
    """Return what a tensor's name has before its layer number.

    >>> prefix_of("model.layers.8.self_attn.k_scale", 8)
    'model.layers'
    """
    parts = name.split(".")
    return ".".join(parts[: parts.index(str(layer))]) if str(layer) in parts else ""
