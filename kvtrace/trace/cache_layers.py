"""Which layers of a model own a KV cache, told from its configuration: known once, used everywhere.

A layer may keep a state instead (Mamba, linear attention, convolutions), read the cache of an earlier layer,
or hold one latent for K and V (MLA). Source: the configurations of Hugging Face's transformers, and what
vLLM 0.32 makes of them (`ModelConfig.get_num_layers_by_block_type`, `models/gemma4.py`, `nemotron_h.py`,
`kimi_linear.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kvtrace.trace.cache_dtypes import CacheKind

MAX_LAYERS: Final = 10_000
_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_ATTENDS: Final = ("attention", "hybrid", "full", "sliding", "global", "local", "window")
_KEEPS_A_STATE: Final = ("linear_attention", "lightning_attention")
_DRAFT_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_EXPANDED_LATENTS: Final = ("minicpm3",)
"""Model types with a latent that vLLM 0.32 expands, and caches K and V of every head
(`ModelArchConfigConvertor.is_deepseek_mla`, `models/minicpm3.py`)."""
_FULL_EVERY: Final = {"gemma3n": 5, "gemma4": 6}
"""Every so-manieth layer attends in full where a configuration lists no `layer_types`."""


@dataclass(frozen=True, slots=True)
class CacheLayers:
    """What each layer of a model keeps between tokens. Layers are numbered from 0."""

    num_layers: int | None = None
    """Of the language model; None: unknown. Draft layers come after these."""
    stateful: frozenset[int] = frozenset()
    """Layers without K and V."""
    shared: Mapping[int, int | None] = field(default_factory=dict)
    """Layer → the earlier one whose cache it reads; None: it is not known which."""
    seen: frozenset[int] = frozenset()
    """Layers that an engine held a cache of, whatever the configuration says; only a trace knows."""
    unquantized: frozenset[int] = frozenset()
    """Layers whose cache was left in the model's dtype beside FP8 ones; only a trace knows."""
    k_serves_v: frozenset[int] = frozenset()
    """Layers without a projection for V."""
    is_latent: bool = False
    """MLA: one latent a token, which stands for K; there is no V."""
    holds_scales: bool = False
    """The cache's layout has scales of its own, made while serving (DeepSeek-V4's fp8_ds_mla)."""
    num_draft_layers: int = 0
    """Layers that predict further tokens, numbered from `num_layers` on or in a module of their own."""
    kv_heads: int | None = None
    kv_heads_of: Mapping[int, int] = field(default_factory=dict)
    """Layers with another number of KV heads."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the cached tensors: K and V, or the latent alone under K's name."""
        return ("k",) if self.is_latent else ("k", "v")

    def own_cache(self, layers: Iterable[int]) -> list[int]:
        """Return those of some layers that write a cache of their own."""
        return [n for n in layers if n not in self.stateful and n not in self.shared]

    def heads(self, layer: int, otherwise: int) -> int:
        """Return a layer's KV heads; `otherwise` where the configuration does not say."""
        return self.kv_heads_of.get(layer, self.kv_heads or otherwise)

    def joined(self, other: CacheLayers) -> CacheLayers:
        """Return what both know of one model; where they differ `other` counts."""
        return replace(
            other,
            num_layers=other.num_layers or self.num_layers,
            stateful=(self.stateful | other.stateful) - other.seen,
            shared={
                **{n: at for n, at in self.shared.items() if n not in other.seen},
                **{n: at for n, at in other.shared.items() if at is not None or n not in self.shared},
            },
            k_serves_v=self.k_serves_v | other.k_serves_v,
            is_latent=self.is_latent or other.is_latent,
            holds_scales=self.holds_scales or other.holds_scales,
            num_draft_layers=max(self.num_draft_layers, other.num_draft_layers),
            kv_heads=other.kv_heads or self.kv_heads,
            kv_heads_of={**self.kv_heads_of, **other.kv_heads_of},
        )


def cache_layers(config: Mapping[str, Any]) -> CacheLayers:
    """Return what a model's config.json (or Mistral's params.json) says; unknown where it says nothing.

    >>> cache_layers({"num_hidden_layers": 4, "full_attention_interval": 2}).stateful
    frozenset({0, 2})
    """
    text = text_config(config)
    kinds = layer_kinds(text)
    num_layers = _count(text, "decoder_layers", "num_hidden_layers", "n_layers", "n_layer", "num_layers")
    num_layers = num_layers or len(kinds) or None
    shared = _shared(text, kinds, num_layers or 0)
    model_type = str(text.get("model_type"))
    every = _count(text, "num_key_value_heads", "n_kv_heads", "multi_query_group_num")
    every = every or _count(text, "decoder_attention_heads", "num_attention_heads", "n_heads", "n_head")
    return CacheLayers(
        num_layers=num_layers,
        stateful=frozenset(n for n, kind in enumerate(kinds) if kind is not None and not attends(kind)),
        shared=shared,
        k_serves_v=frozenset(n for n, kind in enumerate(kinds) if kind == "full_attention")
        if text.get("attention_k_eq_v") is True
        else frozenset(),
        is_latent=(text.get("kv_lora_rank") is not None and model_type not in _EXPANDED_LATENTS)
        or model_type.startswith("deepseek_v4"),
        holds_scales=model_type.startswith("deepseek_v4"),
        num_draft_layers=max((_count(text, name) or 0 for name in _DRAFT_COUNTS), default=0),
        kv_heads=every,
        kv_heads_of=_heads_that_differ(text, kinds, every),
    )


def traced_layers(
    hf_config: Mapping[str, Any],
    num_layers: int,
    without_kv: Iterable[str],
    recorded: Mapping[int, CacheKind],
) -> CacheLayers:
    """Return what a trace says of its model: what its engine had in memory counts before a configuration.

    without_kv: names of layers that the engine gave a state. recorded: the caches of the layers on record.
    """
    said = cache_layers(hf_config)
    numbers = (
        int(part) for name in without_kv for part in name.split(".") if part.isdecimal() and len(part) < 6
    )
    quantized = any(kind != "unquantized" for kind in recorded.values())
    return replace(
        said,
        num_layers=num_layers,
        stateful=(said.stateful | set(numbers)) - recorded.keys(),
        shared={n: at for n, at in said.shared.items() if n not in recorded},
        seen=frozenset(recorded),
        unquantized=frozenset(n for n, kind in recorded.items() if quantized and kind == "unquantized"),
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a configuration, which may be all of it."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, dict):
            return text_config(inner)
    return config


def attends(kind: str) -> bool:
    """Whether a layer of this kind keeps K and V.

    >>> attends("full_attention"), attends("linear_attention"), attends("conv"), attends("hybrid")
    (True, False, False, True)
    """
    return kind not in _KEEPS_A_STATE and any(word in kind for word in _ATTENDS)


def layer_kinds(text: Mapping[str, Any]) -> list[str | None]:
    """Return each layer's kind as the configuration names it, or as it follows; [] where it says nothing."""
    num_layers = min(_count(text, "num_hidden_layers") or 0, MAX_LAYERS)
    for key in ("layer_types", "layers_block_type", "block_types"):
        kinds = text.get(key)
        if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
            repeats = -(-num_layers // len(kinds)) if key == "block_types" else 1
            return (kinds * repeats)[: min(num_layers or len(kinds), MAX_LAYERS)]
    if isinstance(pattern := text.get("hybrid_override_pattern"), str):
        return ["attention" if letter == "*" else letter for letter in pattern[:MAX_LAYERS]]
    if (attending := _attending(text)) is not None:
        return ["attention" if attending(n) else "state" for n in range(num_layers)]
    blocks = text.get("block_configs")
    if isinstance(blocks, list):
        return ["none" if _is_no_op(block) else "attention" for block in blocks[:MAX_LAYERS]]
    every = next((n for name, n in _FULL_EVERY.items() if str(text.get("model_type")).startswith(name)), None)
    if every is not None:
        return [
            "full_attention" if (n + 1) % every == 0 or n == num_layers - 1 else "sliding_attention"
            for n in range(num_layers)
        ]
    return []


def _attending(text: Mapping[str, Any]) -> Callable[[int], bool] | None:
    """Return which layers attend, where the configuration gives a rule or their numbers."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(listed := linear.get("full_attn_layers"), list):
        from_one = _numbers(listed)
        return lambda n: n + 1 in from_one
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(indices := text.get(key), list):
            from_zero = _numbers(indices)
            return lambda n: n in from_zero
    if isinstance(types := text.get("attn_type_list"), list):
        return lambda n: n < len(types) and types[n] == 1
    if interval := _count(text, "full_attention_interval", "layer_group_size"):
        return lambda n: (n + 1) % interval == 0
    if period := _count(text, "attn_layer_period"):
        return lambda n: n % period == (_count(text, "attn_layer_offset") or 0)
    return None


def _numbers(listed: list[Any]) -> frozenset[int]:
    return frozenset(number for number in listed if type(number) is int)


def _is_no_op(block: object) -> bool:
    attention = block.get("attention") if isinstance(block, dict) else None
    return isinstance(attention, dict) and attention.get("no_op") is True


def _shared(text: Mapping[str, Any], kinds: list[str | None], num_layers: int) -> dict[int, int | None]:
    """Return the last `num_kv_shared_layers`, each with the last layer of its kind that owns a cache."""
    first = num_layers - (_count(text, "num_kv_shared_layers") or 0)
    if not 0 < first < num_layers:
        return {}
    own = kinds[:first]
    return {
        n: next((m for m in reversed(range(len(own))) if own[m] == kinds[n]), None) if kinds else None
        for n in range(first, min(num_layers, MAX_LAYERS))
    }


def _heads_that_differ(text: Mapping[str, Any], kinds: list[str | None], every: int | None) -> dict[int, int]:
    listed = text.get("num_key_value_heads", text.get("num_kv_heads"))
    if isinstance(listed, list):
        return {n: heads for n, heads in enumerate(listed[:MAX_LAYERS]) if type(heads) is int and heads > 0}
    wide = _count(text, "num_global_key_value_heads")
    # transformers' Gemma4TextConfig: only models that declare `attention_k_eq_v` false keep one number.
    if wide is None or text.get("attention_k_eq_v", True) is not True:
        return {}
    return {n: wide for n, kind in enumerate(kinds) if kind == "full_attention" and wide != every}


def _count(config: Mapping[str, Any], *names: str) -> int | None:
    return next(_counts(config, names), None)


def _counts(config: Mapping[str, Any], names: Iterable[str]) -> Iterator[int]:
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 <= value <= 1_000_000 and (value or name == "attn_layer_offset"):
            yield value
