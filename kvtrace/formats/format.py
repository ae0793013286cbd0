"""A KV cache format: how K and V are stored, which layers it leaves alone, what it does to Q and output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch import Tensor

    from kvtrace.formats.coding import Coding

Query = Literal["as computed", "fp8", "rotated fp8"]
"""What reaches the product of Q and K. fp8: cast to e4m3 with the scale 1.0. rotated: first by the rotation
that K has. A rotation alone changes no score, so it is not named."""

BOUNDARY_LAYERS = 2
"""Layers at either end that some formats keep native."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a format runs."""

    backend: str
    """By the engine's own name."""
    where: str
    """Devices, head sizes and conditions, in words."""

    def __str__(self) -> str:
        return f"{self.backend} ({self.where})"


@dataclass(frozen=True, slots=True)
class Fact:
    """What a backend really does with a format, or which scales it wants: beyond the format's own rule."""

    id: str
    """Stays the same between versions."""
    text: str
    """What an operator must know, in words."""


FIRST_CHUNK: Final = Fact(
    "first-chunk-uncached", "the first chunk of a prompt does not read its cache: decode alone sees its error"
)
"""Of backends that attend over a prompt's own K and V."""


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """One cache dtype: a pair of codings and the engine's rules around them."""

    name: str
    """The engine's own name, such as vLLM's `--kv-cache-dtype`."""
    k: Coding
    v: Coding
    runs_on: tuple[Place, ...] = ()
    """Empty: no engine is known to serve it."""
    product: str = "vllm"
    """The engine that has it."""
    keeps_boundary_layers: bool = False
    """Whether the first two and the last two layers stay native by themselves."""
    slot_align: int = 1
    """Bytes of K and V together are rounded up to a multiple of this."""
    query_form: Query = "as computed"
    output_in_fp8: bool = False
    """Whether the attention output is rounded to e4m3 with the scale 1.0."""
    facts: tuple[Fact, ...] = ()

    @property
    def uses_scales(self) -> bool:
        """Return whether the checkpoint's k_scale and v_scale change what is stored."""
        return self.k.uses_scale or self.v.uses_scale

    @property
    def is_native(self) -> bool:
        """Return whether nothing is quantized."""
        return self.is_native_in("k") and self.is_native_in("v")

    def is_native_in(self, tensor: str) -> bool:
        """Return whether K or V stays in the model's dtype. tensor: k or v."""
        return self.coding(tensor).is_native

    def coding(self, tensor: str) -> Coding:
        """Return how K or V is stored. tensor: k or v."""
        return self.k if tensor == "k" else self.v

    def in_layer(self, layer: int) -> CacheFormat:  # noqa: ARG002 -- of caches whose layers differ
        """Return a layer's format."""
        return self

    def each(self, change: Callable[[CacheFormat], CacheFormat]) -> CacheFormat:
        """Return it changed."""
        return change(self)

    @property
    def forms(self) -> tuple[CacheFormat, ...]:
        """Return the formats that it is made of: itself."""
        return (self,)

    def each_coding(self, change: Callable[[Coding], Coding]) -> CacheFormat:
        """Return the same with both codings changed."""
        return replace(self, k=change(self.k), v=change(self.v))

    def slot_bytes(self, head_dim: int, head_dim_v: int | None = None) -> int:
        """Return the bytes of one token in one KV head: K, V and their scales.

        head_dim_v: where V's vectors have another length than K's.
        """
        size = self.k.num_bytes(head_dim) + self.v.num_bytes(head_dim_v or head_dim)
        return -(-size // self.slot_align) * self.slot_align

    def bytes_per_token(self, head_dim: int, kv_heads: int, head_dim_v: int | None = None) -> int:
        """Return the bytes of one token in one layer that has this format, over all of its KV heads.

        kv_heads: those that a rank holds, copies included, where it is about one rank.
        """
        return kv_heads * self.slot_bytes(head_dim, head_dim_v)

    def page_bytes(self, block_size: int, head_dim: int, kv_heads: int, head_dim_v: int | None = None) -> int:
        """Return the bytes of one block of `block_size` tokens in one layer, padding left out."""
        return block_size * self.bytes_per_token(head_dim, kv_heads, head_dim_v)

    def native_layers(
        self, num_layers: int, *, is_hybrid: bool = False, skip: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the layers that stay in the model's dtype, ascending.

        num_layers: all of the model, whatever they are. is_hybrid: it has layers with state beside attention;
        then none is kept by the format. skip: layers that the operator leaves out.
        Source: vLLM 0.32, `TurboQuantConfig.get_boundary_skip_layers` and `engine/arg_utils.py`.
        """
        kept = min(BOUNDARY_LAYERS, num_layers // 2) if self.keeps_boundary_layers and not is_hybrid else 0
        ends = {*range(kept), *range(num_layers - kept, num_layers)}
        return tuple(sorted(ends | set(skip)))

    def why_not(self, head_dim: int, head_dim_v: int | None = None) -> str | None:
        """Return why it takes no vectors of these lengths, None where it does."""
        return self.k.why_not(head_dim) or self.v.why_not(head_dim_v or head_dim)

    def round_trip(
        self, k: Tensor, v: Tensor, k_scale: Tensor | float = 1.0, v_scale: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return what attention reads back for K and V, float32; see `Coding.round_trip`."""
        return self.k.round_trip(k, k_scale), self.v.round_trip(v, v_scale)

    def query(self, q: Tensor) -> Tensor:
        """Return Q as it enters the product with K, float32, in the basis of `q`. q: [..., head_dim]."""
        if self.query_form == "as computed":
            return q.float()
        from kvtrace.formats.tensors.rotation import hadamard
        from kvtrace.formats.tensors.steps import e4m3

        if self.query_form == "fp8":
            return e4m3(q.float())
        return hadamard(e4m3(hadamard(q.float())))

    def output(self, o: Tensor) -> Tensor:
        """Return the attention output as the next layer gets it, float32. o: any shape."""
        if not self.output_in_fp8:
            return o.float()
        from kvtrace.formats.tensors.steps import e4m3

        return e4m3(o.float())

    def with_query_in_fp8(self) -> CacheFormat:
        """Return the same where the backend casts Q to FP8 too, named NAME+q8."""
        return replace(self, name=f"{self.name}+q8", query_form="fp8")
