from __future__ import annotations

import numpy as np
import pytest
import torch
from kvtrace_capture.gathered_rows import GatheredRows, HookedLayer

LAYERS = {
    "wide": HookedLayer(0, 0, (2, 4), (2, 6), "bfloat16"),
    "exact": HookedLayer(3, 0, (2, 4), (2, 4), "float32"),
    "plain": HookedLayer(5, 1, (2, 4), (2, 4), "bfloat16"),
}


def tensors(name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    layer, generator = LAYERS[name], torch.Generator().manual_seed(seed)
    dtype = torch.float32 if layer.dtype == "float32" else torch.bfloat16
    key, value = (torch.randn(5, *s, generator=generator).to(dtype) for s in (layer.k_shape, layer.v_shape))
    return key, value


def test_layers_of_several_shapes_and_dtypes_come_back_by_index() -> None:
    gathered, rows = GatheredRows(LAYERS), torch.tensor([4, 0, 2])
    given = {name: tensors(name, seed) for seed, name in enumerate(LAYERS)}
    for name, (key, value) in given.items():
        gathered.take(name, "k", key, rows)
        gathered.take(name, "v", value, rows)
    assert gathered.silent_layers() == []
    assert len(gathered.slabs) == 3  # bfloat16 of two shapes, and float32
    stored = gathered.stored_bits(gathered.slabs, np.array([True, True, False]))
    assert set(stored) == {(layer.index, tensor) for layer in LAYERS.values() for tensor in "kv"}
    for name, layer in LAYERS.items():
        for tensor, values in zip("kv", given[name], strict=True):
            kept = values[[4, 0]]
            bits = (
                kept.numpy() if layer.dtype == "float32" else kept.view(torch.int16).numpy().view(np.uint16)
            )
            assert stored[layer.index, tensor].dtype == bits.dtype
            assert (stored[layer.index, tensor] == bits).all()


def test_a_new_step_leaves_the_last_ones_rows_to_whoever_holds_them() -> None:
    gathered = GatheredRows({"plain": LAYERS["plain"]})
    key, value = tensors("plain", 0)
    gathered.take("plain", "k", key, torch.tensor([1]))
    gathered.take("plain", "v", value, torch.tensor([1]))
    held = dict(gathered.slabs)
    gathered.clear()
    assert gathered.silent_layers() == ["plain"]
    gathered.take("plain", "k", key + 1, torch.tensor([1]))
    assert torch.equal(held[0][0, 0], key[1])


def test_a_layer_of_another_shape_than_it_was_found_with_is_refused() -> None:
    gathered = GatheredRows(LAYERS)
    _, value = tensors("plain", 0)
    with pytest.raises(TypeError, match=r"layer wide writes v in torch.bfloat16 \(5, 2, 4\), rank.json says"):
        gathered.take("wide", "v", value, torch.tensor([1]))
