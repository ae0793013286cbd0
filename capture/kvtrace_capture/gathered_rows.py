"""One step's rows of every layer, gathered into a few large tensors that go to the host in one copy each.

It needs torch and no vllm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_TORCH_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_FP8_DTYPES: Final = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


StoredBits = dict[tuple[int, str], "NDArray[Any]"]
"""(layer index, "k" | "v" | "q" | "o") → [num_rows, head, head_dim]."""


@dataclass(frozen=True, slots=True)
class HookedLayer:
    """One layer as its hook must find it; a cache write of another shape or dtype is not stored."""

    index: int
    group: int
    """The layer's KV-cache group, which has a block table and slots of its own."""
    k_shape: tuple[int, int]
    """(kv_head, head_dim)"""
    v_shape: tuple[int, int]
    dtype: Literal["bfloat16", "float16", "float32"]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shape that each tensor has a token."""
        return {"k": self.k_shape, "v": self.v_shape}

    @property
    def row_bytes(self) -> int:
        """Return the bytes of K and V of one token."""
        return _row_bytes(self)


@dataclass(frozen=True, slots=True)
class QueryLayer:
    """One layer's queries and outputs as the hook around its attention must find them."""

    index: int
    group: int
    q_shape: tuple[int, int]
    """(query_head, head_dim)"""
    o_shape: tuple[int, int] | None
    """None where the engine's output is not captured."""
    dtype: Literal["bfloat16", "float16", "float32"]
    is_fp8: bool = False
    """True: Q comes in FP8. Any such value is one of bf16 and of fp16, so it is stored as that."""

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shape that each tensor has a token."""
        return {"q": self.q_shape} | ({} if self.o_shape is None else {"o": self.o_shape})

    @property
    def row_bytes(self) -> int:
        """Return the bytes of Q, and of the output if it is captured, of one token."""
        return _row_bytes(self)


def _row_bytes(layer: HookedLayer | QueryLayer) -> int:
    num_values = sum(heads * head_dim for heads, head_dim in layer.shapes.values())
    return num_values * _TORCH_DTYPES[layer.dtype].itemsize


@dataclass(frozen=True, slots=True)
class _Slab:
    """All tensors of one shape and dtype."""

    dtype: torch.dtype
    shape: tuple[int, int]
    tensors: list[tuple[int, str]]
    """(layer index, "k" | "v" | "q" | "o") by place in the slab."""


@dataclass(frozen=True, slots=True)
class _Place:
    slab: int
    number: int
    dtype: torch.dtype
    shape: torch.Size
    is_fp8: bool


class GatheredRows:
    """Room for the chosen rows of every layer's tensors, made anew for each step.

    slabs: number → [tensor, row, head, head_dim] on the device they come from, whole once no layer is silent.
    """

    def __init__(self, layers: Mapping[str, HookedLayer | QueryLayer]) -> None:
        self.slabs: dict[int, torch.Tensor] = {}
        self._layouts: list[_Slab] = []
        self._places = {
            (name, tensor): self._place(layer, tensor, shape)
            for name, layer in layers.items()
            for tensor, shape in layer.shapes.items()
        }
        self._rooms: dict[int, list[torch.Tensor]] = {}
        self._taken: set[tuple[str, str]] = set()

    def clear(self) -> None:
        """Begin a step. What the last one gathered stays with whoever holds it."""
        self.slabs = {}
        self._rooms.clear()
        self._taken.clear()

    def take(self, name: str, tensor: str, values: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy some rows of one tensor. values: [num_tokens, head, head_dim]. rows: int64 [num_rows].

        Raises TypeError: not the layer's shape or dtype. Raises RuntimeError: it came twice in a step.
        """
        if (name, tensor) in self._taken:
            raise RuntimeError(f"layer {name} writes its {tensor} twice in one step")
        self._taken.add((name, tensor))
        place = self._places[name, tensor]
        is_expected = values.dtype in _FP8_DTYPES if place.is_fp8 else values.dtype == place.dtype
        if not is_expected or values.shape[1:] != place.shape:
            raise TypeError(
                f"layer {name} writes {tensor} in {values.dtype} {tuple(values.shape)}, rank.json says "
                f"{'FP8' if place.is_fp8 else place.dtype} with {tuple(place.shape)} a token"
            )
        rooms = self._rooms.get(place.slab)
        if rooms is None:
            rooms = self._make_rooms(place.slab, len(rows), values.device)
        if place.is_fp8:  # torch selects no rows of FP8
            chosen = values.contiguous().view(torch.uint8).index_select(0, rows).view(values.dtype)
            rooms[place.number].copy_(chosen)
        else:
            torch.index_select(values, 0, rows, out=rooms[place.number])

    def silent_layers(self) -> list[str]:
        """Return the layers that lack a tensor in this step."""
        return list(dict.fromkeys(name for name, tensor in self._places if (name, tensor) not in self._taken))

    def stored_bits(self, slabs: Mapping[int, torch.Tensor], keep: NDArray[np.bool_]) -> StoredBits:
        """Return the kept rows by (layer index, tensor): uint16 bits of bf16 and fp16, float32 as itself.

        slabs: a step's, on the host.
        """
        tensors: StoredBits = {}
        for number, slab in slabs.items():
            is_float32 = slab.dtype == torch.float32
            bits = slab.numpy() if is_float32 else slab.view(torch.int16).numpy().view(np.uint16)
            kept = bits if keep.all() else bits[:, keep]
            tensors.update(zip(self._layouts[number].tensors, kept, strict=True))
        return tensors

    def _place(self, layer: HookedLayer | QueryLayer, tensor: str, shape: tuple[int, int]) -> _Place:
        dtype = _TORCH_DTYPES[layer.dtype]
        kinds = [(slab.dtype, slab.shape) for slab in self._layouts]
        if (dtype, shape) not in kinds:
            kinds.append((dtype, shape))
            self._layouts.append(_Slab(dtype, shape, []))
        number = kinds.index((dtype, shape))
        tensors = self._layouts[number].tensors
        tensors.append((layer.index, tensor))
        is_fp8 = isinstance(layer, QueryLayer) and layer.is_fp8 and tensor == "q"
        return _Place(number, len(tensors) - 1, dtype, torch.Size(shape), is_fp8)

    def _make_rooms(self, number: int, num_rows: int, device: torch.device) -> list[torch.Tensor]:
        layout = self._layouts[number]
        slab = torch.empty((len(layout.tensors), num_rows, *layout.shape), dtype=layout.dtype, device=device)
        self.slabs[number] = slab
        rooms = self._rooms[number] = list(slab.unbind(0))
        return rooms
