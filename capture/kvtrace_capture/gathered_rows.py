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
    def row_bytes(self) -> int:
        """Return the bytes of K and V of one token."""
        num_values = self.k_shape[0] * self.k_shape[1] + self.v_shape[0] * self.v_shape[1]
        return num_values * _TORCH_DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class _Slab:
    """All tensors of one shape and dtype."""

    dtype: torch.dtype
    shape: tuple[int, int]
    tensors: list[tuple[int, str]]
    """(layer index, "k" | "v") by place in the slab."""


@dataclass(frozen=True, slots=True)
class _Place:
    slab: int
    number: int
    dtype: torch.dtype
    shape: torch.Size


class GatheredRows:
    """Room for the chosen rows of every layer's K and V, made anew for each step.

    slabs: number → [tensor, row, kv_head, head_dim] on the device of K and V, whole once no layer is silent.
    """

    def __init__(self, layers: Mapping[str, HookedLayer]) -> None:
        self.slabs: dict[int, torch.Tensor] = {}
        self._layouts: list[_Slab] = []
        self._places = {
            name: (self._place(layer, "k", layer.k_shape), self._place(layer, "v", layer.v_shape))
            for name, layer in layers.items()
        }
        self._rooms: dict[int, list[torch.Tensor]] = {}
        self._taken: set[str] = set()

    def clear(self) -> None:
        """Begin a step. What the last one gathered stays with whoever holds it."""
        self.slabs = {}
        self._rooms.clear()
        self._taken.clear()

    def take(self, name: str, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy some rows of one layer. key, value: [num_tokens, kv_head, head_dim]. rows: int64 [num_rows].

        Raises TypeError: not the layer's shape or dtype. Raises RuntimeError: it came twice in a step.
        """
        if name in self._taken:
            raise RuntimeError(f"layer {name} writes its cache twice in one step")
        self._taken.add(name)
        for values, place in zip((key, value), self._places[name], strict=True):
            if values.dtype != place.dtype or values.shape[1:] != place.shape:
                raise TypeError(
                    f"layer {name} writes {values.dtype} {tuple(values.shape)}, "
                    f"rank.json says {place.dtype} with {tuple(place.shape)} a token"
                )
            rooms = self._rooms.get(place.slab)
            if rooms is None:
                rooms = self._make_rooms(place.slab, len(rows), values.device)
            torch.index_select(values, 0, rows, out=rooms[place.number])

    def silent_layers(self) -> list[str]:
        """Return the layers that wrote nothing in this step."""
        return [name for name in self._places if name not in self._taken]

    def stored_bits(
        self, slabs: Mapping[int, torch.Tensor], keep: NDArray[np.bool_]
    ) -> dict[tuple[int, str], NDArray[Any]]:
        """Return the kept rows by (layer index, "k" | "v"): uint16 bits of bf16 and fp16, float32 as itself.

        slabs: a step's, on the host.
        """
        tensors: dict[tuple[int, str], NDArray[Any]] = {}
        for number, slab in slabs.items():
            is_float32 = slab.dtype == torch.float32
            bits = slab.numpy() if is_float32 else slab.view(torch.int16).numpy().view(np.uint16)
            kept = bits if keep.all() else bits[:, keep]
            tensors.update(zip(self._layouts[number].tensors, kept, strict=True))
        return tensors

    def _place(self, layer: HookedLayer, tensor: str, shape: tuple[int, int]) -> _Place:
        dtype = _TORCH_DTYPES[layer.dtype]
        kinds = [(slab.dtype, slab.shape) for slab in self._layouts]
        if (dtype, shape) not in kinds:
            kinds.append((dtype, shape))
            self._layouts.append(_Slab(dtype, shape, []))
        number = kinds.index((dtype, shape))
        tensors = self._layouts[number].tensors
        tensors.append((layer.index, tensor))
        return _Place(number, len(tensors) - 1, dtype, torch.Size(shape))

    def _make_rooms(self, number: int, num_rows: int, device: torch.device) -> list[torch.Tensor]:
        layout = self._layouts[number]
        slab = torch.empty((len(layout.tensors), num_rows, *layout.shape), dtype=layout.dtype, device=device)
        self.slabs[number] = slab
        rooms = self._rooms[number] = list(slab.unbind(0))
        return rooms
