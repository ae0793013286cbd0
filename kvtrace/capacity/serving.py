"""How a model is served, as far as it changes what the cache holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from kvtrace.formats import LayeredFormat, find_format, parse_format, why_refused
from kvtrace.formats.layered import is_format, served_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.capacity.model import ModelLayers

BASELINE: Final = "auto"
Platform = Literal["gpu", "cpu"]

GPU_BATCHED_TOKENS: Final = 8192
"""`max_num_batched_tokens` of vLLM 0.32's server on an H100 or H200; 16,384 from 160 GiB on, 2,048 on an A100
and below 70 GiB."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The server's settings, under vLLM's names where it has one."""

    max_model_len: int
    cache_dtype: str = "auto"
    skip_layers: tuple[str, ...] = ()
    """Layer numbers and `sliding_window`, as `--kv-cache-dtype-skip-layers` takes them."""
    tp: int = 1
    block_size: int | None = None
    """None: what the backend prefers."""
    max_num_batched_tokens: int = GPU_BATCHED_TOKENS
    platform: Platform = "gpu"
    backend: str | None = None
    """None: the first that runs the cache dtype."""
    prefix_caching: bool = True
    hybrid_manager: bool = True
    speculative_tokens: int = 0
    num_blocks: int | None = None
    """`num_gpu_blocks_override`: replaces what the budget gives."""

    @property
    def in_flight_tokens(self) -> int:
        """Return the tokens that are scheduled and not settled: windows keep their blocks for so many more.

        Source: vLLM 0.32, `VllmConfig.max_in_flight_tokens`: two batches where scheduling is asynchronous.
        """
        return self.max_num_batched_tokens * (1 if self.platform == "cpu" else 2)


def named_servings(cache_dtypes: Iterable[str], serving: Serving, model: ModelLayers) -> dict[str, Serving]:
    """Return what is planned, by label: `auto`, each cache dtype, and it once more where layers are skipped.

    Formats by layer that leave some layers native and quantize the others in one format are that format with
    skipped layers, as vLLM serves them.
    """
    found: dict[str, Serving] = {}
    for dtype in (BASELINE, *cache_dtypes):
        name, own = _with_skipped(dtype, model, found)
        found.setdefault(name, replace(serving, cache_dtype=name, skip_layers=()))
        if own:
            found[dtype] = replace(serving, cache_dtype=name, skip_layers=own)
        if serving.skip_layers and name != BASELINE:
            both = tuple(dict.fromkeys((*own, *serving.skip_layers)))
            label = f"{dtype} without {','.join(serving.skip_layers)}"
            found[label] = replace(serving, cache_dtype=name, skip_layers=both)
    return found


def canonical(cache_dtype: str) -> str:
    """Return a cache dtype's first name where kvtrace knows it by several."""
    return cache_dtype if why_refused(cache_dtype) else find_format(cache_dtype).name


def _with_skipped(dtype: str, model: ModelLayers, known: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the one cache dtype of all quantized layers, by the name that is known already, and the others.

    Where they have several, or a layer is listed that the model lacks, it is itself.
    """
    form = parse_format(dtype) if is_format(dtype) else None
    if not isinstance(form, LayeredFormat) or form.listed[-1][0] > max(model.attending, default=0):
        return dtype, ()
    served = served_as(form, model.attending, model.num_layers, is_hybrid=model.is_hybrid)
    if served is None or not served[1]:
        return dtype, ()
    name = next((one for one in known if canonical(one) == served[0]), served[0])
    return name, tuple(map(str, served[1]))
