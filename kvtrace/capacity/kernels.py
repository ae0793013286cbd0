"""Which blocks the attention backends' kernels read: the unit that vLLM's block sizes are rounded to.

Source: vLLM 0.32, `get_supported_kernel_block_sizes` and `get_preferred_block_size` of the backends.
FlashAttention 4 and FlashInfer on Blackwell take others; there the engine's own block size must be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULT_BLOCK: Final = 16


@dataclass(frozen=True, slots=True)
class KernelBlocks:
    """The block sizes of one backend, in tokens."""

    backend: str
    sizes: tuple[int, ...]
    any_multiple: bool = False
    """Whether every multiple of the one size is read whole."""
    preferred: int | None = None

    @property
    def smallest(self) -> int:
        """Return the smallest block, of which every block of the cache is a multiple."""
        return min(self.sizes)

    def takes(self, block: int) -> bool:
        """Return whether the cache may have blocks of so many tokens."""
        return any(block % size == 0 for size in self.sizes)

    def largest_within(self, token_bytes: int, page_bytes: int) -> int:
        """Return the largest block that a page holds, the smallest where none does.

        >>> KernelBlocks("A", (16,), any_multiple=True).largest_within(10, 400)
        32
        """
        most = page_bytes // token_bytes
        sizes = (
            [max(self.smallest, most // self.smallest * self.smallest)] if self.any_multiple else self.sizes
        )
        return max((size for size in sizes if size * token_bytes <= page_bytes), default=min(sizes))


_KNOWN: Final = {
    one.backend: one
    for one in (
        *(
            KernelBlocks(name, (16,), any_multiple=True)
            for name in ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "ROCM_ATTN")
        ),
        *(KernelBlocks(name, (16,), any_multiple=True) for name in ("FLASH_ATTN_MLA", "TRITON_MLA")),
        KernelBlocks("FLASHINFER", (16, 32, 64)),
        KernelBlocks("ROCM_AITER_FA", (16, 32)),
        KernelBlocks("TURBOQUANT", (16, 32, 64, 128)),
        KernelBlocks("ULTRAQUANT", (16, 32, 64, 128), preferred=64),
        KernelBlocks("FLASHMLA", (64,)),
        KernelBlocks("FLASHMLA_SPARSE", (64,)),
        KernelBlocks("CUTLASS_MLA", (128,)),
        KernelBlocks("FLASHINFER_MLA", (32, 64)),
        KernelBlocks("CPU_ATTN", (32,), any_multiple=True, preferred=128),
        KernelBlocks("CPU_MLA", (16,), preferred=16),
    )
}


NO_BACKEND: Final = "none"
"""Of a layer whose format no released vLLM serves: its blocks are taken to be of 16 tokens."""


def kernel_blocks(backend: str) -> KernelBlocks:
    """Return a backend's blocks by vLLM's name. Raises InputError: kvtrace does not know them."""
    if backend == NO_BACKEND:
        return KernelBlocks(NO_BACKEND, (_DEFAULT_BLOCK,), any_multiple=True)
    found = _KNOWN.get(backend.upper().replace("-", "_"))
    if found is None:
        raise InputError(
            f"--backend {backend[:60]!r}: its block sizes are not known; expected one of {', '.join(_KNOWN)}"
        )
    return found


def block_for(backends: Sequence[KernelBlocks]) -> int:
    """Return the block size that vLLM takes by itself for a model with these backends.

    Source: vLLM 0.32, `Platform._preferred_block_size_for_backends`.
    """
    if len(backends) == 1:
        (only,) = backends
        if only.preferred:
            return only.preferred
        return _DEFAULT_BLOCK if only.takes(_DEFAULT_BLOCK) else only.smallest
    if all(one.takes(_DEFAULT_BLOCK) for one in backends):
        return _DEFAULT_BLOCK
    most = prod(one.smallest for one in backends)
    return next(block for block in range(1, most + 1) if all(one.takes(block) for one in backends))
