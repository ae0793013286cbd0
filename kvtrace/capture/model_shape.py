"""The sizes of a model's KV cache, given or read from its config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.plain_text import plain
from kvtrace.trace.cache_layers import cache_layers, text_config

if TYPE_CHECKING:
    from pathlib import Path

_INSTEAD: Final = "give --layers, --kv-heads and --head-dim instead of --model"
_MAX_SIZE: Final = 1_000_000
"""Of layers, heads and values: a hundred times what models have."""
_BYTES_OF_DTYPE: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Attention layers with K and V of their own, and what each token adds to them."""

    num_layers: int
    """Those that write a cache: states and shared caches add nothing to a trace."""
    num_kv_heads: int
    """Of the layer that has most, where layers differ."""
    head_dim: int
    dtype: str = "bfloat16"
    """Of the captured values, which is the model's and not the cache's."""

    @property
    def bytes_per_token(self) -> int:
        """Return 2 × layers × KV heads × head_dim × bytes of a value."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _BYTES_OF_DTYPE[self.dtype]


def read_model_shape(model: Path) -> ModelShape:
    """Return the shape that a checkpoint's config.json declares; models of text and images: of the text part.

    Raises InputError: there is no readable config.json, it lacks a size, or its cache holds latents (MLA).
    """
    path = model / "config.json" if model.is_dir() else model
    try:
        config = parse_strict_json(read_regular(path))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected a model's config.json"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error}); expected a model's config.json") from error
    text = dict(text_config(config)) if isinstance(config, dict) else None
    if not isinstance(text, dict):
        raise InputError(f"{path}: expected a JSON object with the model's sizes")
    cache = cache_layers(text)
    if cache.is_latent:
        raise InputError(
            f"{path}: this model caches latents (MLA), not K and V per head; it cannot be captured"
        )
    heads = _size(text, path, "num_attention_heads")
    return ModelShape(
        num_layers=len(cache.own_cache(range(_size(text, path, "num_hidden_layers")))),
        num_kv_heads=max((cache.kv_heads or heads, *cache.kv_heads_of.values())),
        head_dim=_size(text, path, "head_dim")
        if text.get("head_dim") is not None
        else _size(text, path, "hidden_size") // heads,
        dtype=_dtype(text, path),
    )


def _size(config: dict[str, Any], path: Path, name: str) -> int:
    value = config.get(name)
    if type(value) is not int or not 1 <= value <= _MAX_SIZE:
        shown = plain(repr(value))
        raise InputError(f"{path}: {name} is {shown}, expected a number from 1 to {_MAX_SIZE:,}; {_INSTEAD}")
    return value


def _dtype(config: dict[str, Any], path: Path) -> str:
    dtype = config.get("dtype", config.get("torch_dtype")) or "bfloat16"
    if not isinstance(dtype, str) or dtype not in _BYTES_OF_DTYPE:
        raise InputError(
            f"{path}: dtype is {plain(repr(dtype))}, expected {', '.join(_BYTES_OF_DTYPE)}; {_INSTEAD}"
        )
    return str(dtype)
