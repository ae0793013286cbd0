"""The page of each layer: the tokens of one block, and the bytes that they take in it on one rank.

Source: vLLM 0.32, `Attention.get_kv_cache_spec`, `Platform._align_hybrid_block_size` and
`Platform._align_heterogeneous_kv_block_size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Final

from kvtrace.capacity.kernels import NO_BACKEND, KernelBlocks, block_for, kernel_blocks
from kvtrace.capacity.stored import Stored, stored_form
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.capacity.model import Kind, LayerShape, ModelLayers
    from kvtrace.capacity.serving import Serving

_LATENT_HYBRID_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's page. Layers with equal pages can share a group of the cache."""

    kind: Kind
    block: int
    """Tokens of a block; for a state, those between two checkpoints of it."""
    token_bytes: int
    """Of one token on one rank, scales in the page included; 0 for a state."""
    stored: tuple[int, int, int, str]
    """KV heads on the rank, head sizes of K and V, and the cache dtype."""
    span: int | None = None
    state_bytes: int = 0
    padded: int | None = None

    @property
    def content(self) -> int:
        """Return the bytes in use."""
        return self.state_bytes or self.block * self.token_bytes

    @property
    def size(self) -> int:
        """Return the bytes that it takes."""
        return self.padded or self.content


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a model's layers, in their order."""

    block_size: int
    """The engine's `block_size`, after what it rounds it up to."""
    layers: tuple[tuple[LayerShape, Page], ...]
    native: tuple[int, ...]
    """Layers that stay in the model's dtype beside quantized ones."""
    backends: tuple[str, ...]
    """Those that were taken for the layers; the engine may choose others, with other blocks."""
    flags: str | None
    """vLLM's, for a model with this cache; None: no released vLLM serves it."""


def layer_pages(model: ModelLayers, serving: Serving) -> Pages:
    """Return each layer's page. Raises InputError: vLLM would not start so, or kvtrace does not know."""
    form = stored_form(model, serving)
    attending = [layer for layer in model.layers if layer.kind != "state"]
    kernels = list(dict.fromkeys(form.backend(layer) for layer in attending))
    blocks = [kernel_blocks(name) for name in kernels]
    block = serving.block_size or block_for(blocks)
    if "CPU_MLA" in kernels:
        block = kernel_blocks("CPU_MLA").smallest
    state = max((form.state_bytes(layer) for layer in model.layers if layer.kind == "state"), default=0)
    state_page = None
    if state and attending:
        block, state_page = _aligned_to_state(block, state, form, attending, blocks)
    shared = None
    if form.skips and serving.platform != "cpu" and attending:
        block, shared = _aligned_to_native(block, state_page, form, attending[0])
        state_page = shared if shared and state_page else state_page
    for one in blocks:
        if not one.takes(block):
            raise InputError(
                f"blocks of {block} tokens: {one.backend} takes {_sizes(one)}; give --block-size"
            )
    state_block = block if serving.prefix_caching else serving.max_model_len
    return Pages(
        block,
        tuple((layer, _page(layer, form, block, shared, state_page, state_block)) for layer in model.layers),
        form.native,
        tuple(name for name in kernels if name != NO_BACKEND),
        form.flags,
    )


def _page(
    layer: LayerShape, form: Stored, block: int, shared: int | None, state_page: int | None, state_block: int
) -> Page:
    if layer.kind == "state":
        size = form.state_bytes(layer)
        return Page("state", state_block, 0, (1, 0, 0, "state"), state_bytes=size, padded=state_page)
    token_bytes = form.token_bytes(layer)
    padded = None
    if layer.kind == "sliding":
        # A window's layers choose their own blocks, within the page that all share.
        kernel = kernel_blocks(form.backend(layer))
        block, padded = kernel.largest_within(token_bytes, shared or token_bytes * block), shared
        if shared and block * token_bytes > shared:
            raise InputError(
                f"layer {layer.index}: {block} tokens take {block * token_bytes:,} bytes, more than the page "
                f"of {shared:,} that all layers share; vLLM does not start so"
            )
    return Page(layer.kind, block, token_bytes, form.identity(layer), layer.span, padded=padded)


def _aligned_to_state(
    block: int, state: int, form: Stored, attending: Sequence[LayerShape], kernels: Sequence[KernelBlocks]
) -> tuple[int, int | None]:
    """Return the block that a state fits into, and the page that states are padded to."""
    first = attending[0]
    token_bytes = form.packed_token_bytes(first) if form.is_packed else form.first_token_bytes(first)
    if form.is_packed and form.skips:
        token_bytes = lcm(token_bytes, form.native_token_bytes(first))
    unit = max(kernel_blocks(form.backend(first)).smallest, block)
    if first.kind == "latent":
        unit = max(unit, _LATENT_HYBRID_BLOCK)
    needed = _round_up(unit * -(-state // (unit * token_bytes)), lcm(*(one.smallest for one in kernels)))
    block = max(block, needed)
    page = block * token_bytes
    return block, None if page == state else page


def _aligned_to_native(
    block: int, state_page: int | None, form: Stored, first: LayerShape
) -> tuple[int, int | None]:
    """Return the block whose quantized page covers one kernel block of a native layer, and that page.

    The page is what sliding layers are padded to; None where nothing is padded. vLLM asks the backend of the
    first layer, which does not pack where that layer is native itself.
    """
    quantized, native = form.first_token_bytes(first), form.native_token_bytes(first)
    if quantized == native:
        return block, None
    smallest = kernel_blocks(form.backend(first)).smallest
    unit = max(smallest, block)
    required = max(native * smallest, state_page or 0)
    block = max(block, unit * -(-required // (unit * quantized)))
    return block, block * quantized


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _sizes(kernel: KernelBlocks) -> str:
    sizes = ", ".join(str(size) for size in kernel.sizes)
    return f"multiples of {sizes}"
