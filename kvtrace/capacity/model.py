"""What each layer of a model keeps between tokens: its kind and sizes, over the whole model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from kvtrace.capacity.families import INSTEAD, LATENT, check_known, kinds_of
from kvtrace.capacity.states import ITEMSIZE, STATES, State, size_of
from kvtrace.errors import InputError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.trace.cache_layers import MAX_LAYERS, CacheLayers, attends, cache_layers, text_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

Kind = Literal["full", "sliding", "chunked", "latent", "state"]
"""sliding: only the last `span` tokens are needed; chunked: those of the current `span`; latent: one vector a
token for K and V (MLA); state: the same bytes whatever the length."""

_WITHOUT_CACHE: Final = ("mlp", "moe", "-", "E", "none")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer with a cache of its own."""

    index: int
    kind: Kind
    kv_heads: int = 0
    head_dim: int = 0
    """Of K; of the whole latent where there is no V."""
    head_dim_v: int = 0
    span: int | None = None
    state: State | None = None
    is_draft: bool = False


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """A model's layers in the engine's order, draft layers last."""

    name: str
    model_type: str
    dtype: str
    """Of weights and of a cache that is not quantized."""
    num_layers: int
    """Of the language model, those without a cache of their own included."""
    layers: tuple[LayerShape, ...]
    max_model_len: int | None = None
    num_shared: int = 0
    """Layers that read another layer's cache and own none."""

    @property
    def itemsize(self) -> int:
        """Return the bytes of one value in the model's dtype."""
        return ITEMSIZE[self.dtype]

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep a state."""
        return any(layer.kind == "state" for layer in self.layers)

    @property
    def attending(self) -> tuple[int, ...]:
        """Return the layers whose cache grows with tokens."""
        return tuple(layer.index for layer in self.layers if layer.kind != "state")

    @property
    def kv_heads(self) -> int:
        """Return the KV heads of the first layer that has some, over all ranks."""
        return next((layer.kv_heads for layer in self.layers if layer.kv_heads), 0)

    def with_draft(self, draft: ModelLayers) -> ModelLayers:
        """Return the same with the layers of a draft model (EAGLE and the like) behind its own."""
        added = (replace(layer, index=self.num_layers + layer.index, is_draft=True) for layer in draft.layers)
        return replace(self, layers=(*self.layers, *added))


def read_model_layers(model: Path, *, own_draft: bool = False) -> ModelLayers:
    """Return what a checkpoint's config.json says its layers keep. model: the checkpoint, or the file.

    Raises InputError: there is no readable config.json, it lacks a size, or the layout is not known.
    """
    path = model / "config.json" if model.is_dir() else model
    try:
        config = parse_strict_json(read_regular(path))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected a checkpoint, its config.json or a trace"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}); expected a model's config.json") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected a JSON object with the model's sizes")
    return model_layers(config, path, name=path.parent.name or str(path), own_draft=own_draft)


def model_layers(
    config: Mapping[str, Any], path: object, *, name: str, own_draft: bool = False
) -> ModelLayers:
    """Return what a configuration says its layers keep; models of text and images: of the text part.

    path: for errors. own_draft: with the draft layers that the model brings (MTP).
    Raises InputError: it lacks a size, or the layout is not known.
    """
    text = text_config(config)
    model_type = str(text.get("model_type") or config.get("model_type"))
    check_known(model_type, path)
    cache = cache_layers(config)
    num_layers = cache.num_layers or 0
    if not 0 < num_layers <= MAX_LAYERS:
        raise InputError(f"{path}: num_hidden_layers is missing, expected the number of layers")
    try:
        layers = tuple(_layers(text, cache, model_type, num_layers, own_draft=own_draft))
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path}: has no usable {error}, which {model_type} needs; give the full config.json"
        ) from error
    if own_draft and not cache.num_draft_layers:
        raise InputError(f"{path}: declares no draft layers; leave --mtp out, or give --draft MODEL")
    length = text.get("max_position_embeddings")
    return ModelLayers(
        name=name,
        model_type=model_type,
        dtype=_dtype(config, text, path),
        num_layers=num_layers,
        layers=layers,
        max_model_len=length if type(length) is int and length > 0 else None,
        num_shared=len(cache.shared),
    )


def _layers(
    text: Mapping[str, Any], cache: CacheLayers, model_type: str, num_layers: int, *, own_draft: bool
) -> Iterator[LayerShape]:
    kinds = kinds_of(text, num_layers)
    shape_of = _latent if model_type in LATENT else _attention
    for index, kind in enumerate(kinds):
        if model_type == "falcon_h1":  # each layer has both, attention first
            yield _attention(text, cache, index, "full_attention")
        if kind in _WITHOUT_CACHE:
            continue
        if not attends(kind) and model_type not in STATES:
            raise InputError(
                f"{model_type} with layers of {kind[:40]!r}: what they keep is not known; {INSTEAD}"
            )
        if not attends(kind) or model_type == "falcon_h1":
            number = num_layers + index if model_type == "falcon_h1" else index  # as vLLM counts them
            yield LayerShape(number, "state", state=STATES[model_type](text))
        elif index not in cache.shared:
            yield shape_of(text, cache, index, kind)
    if own_draft:
        for draft in range(cache.num_draft_layers):
            yield replace(shape_of(text, cache, num_layers + draft, "full_attention"), is_draft=True)


def _latent(text: Mapping[str, Any], cache: CacheLayers, index: int, kind: str) -> LayerShape:  # noqa: ARG001
    return LayerShape(index, "latent", 1, size_of(text, "kv_lora_rank") + size_of(text, "qk_rope_head_dim"))


def _attention(text: Mapping[str, Any], cache: CacheLayers, index: int, kind: str) -> LayerShape:
    is_full = "sliding" not in kind and "chunked" not in kind
    if text.get("head_dim") is None:
        head_dim = size_of(text, "hidden_size") // size_of(text, "num_attention_heads")
    else:
        head_dim = size_of(text, "head_dim")
    if is_full and text.get("global_head_dim") is not None:
        head_dim = size_of(text, "global_head_dim")
    heads = cache.heads(index, size_of(text, "num_attention_heads"))
    if is_full:
        return LayerShape(index, "full", heads, head_dim, head_dim)
    if str(text.get("model_type")) == "llama4_text":
        return LayerShape(index, "chunked", heads, head_dim, head_dim, size_of(text, "attention_chunk_size"))
    return LayerShape(index, "sliding", heads, head_dim, head_dim, size_of(text, "sliding_window"))


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any], path: object) -> str:
    found = next(
        (part[key] for part in (config, text) for key in ("dtype", "torch_dtype") if part.get(key)),
        "bfloat16",
    )
    if not isinstance(found, str) or found not in ITEMSIZE:
        raise InputError(f"{path}: dtype is {str(found)[:40]!r}, expected {', '.join(ITEMSIZE)}")
    return found
