"""Captured K and V against Hugging Face transformers on the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from vllm_prompts import ONE_BY_ONE

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from vllm_engines import Captured

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def squared_errors(model: Path, captured: Captured) -> NDArray[np.float64]:
    """Return the squared distance from an fp32 forward, [layer, k or v, captured or a bf16 forward]."""
    import torch
    from transformers import AutoModelForCausalLM

    trace, rounds, _ = captured
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )

    def keys_and_values(network: Any, token_ids: list[int]) -> list[list[NDArray[np.float32]]]:
        with torch.no_grad():
            cache = network(torch.tensor([token_ids]), use_cache=True).past_key_values
        return [[x[0].transpose(0, 1).float().numpy() for x in (c.keys, c.values)] for c in cache.layers]

    errors = np.zeros((len(trace.layers), 2, 2))
    stored = [[trace.values(layer, tensor) for tensor in "kv"] for layer in range(len(trace.layers))]
    for request in range(len(ONE_BY_ONE)):
        (output,) = rounds[request]
        token_ids = (output["prompt"] + output["output"])[:-1]
        rows = trace.rows_of(request)
        assert len(rows) == len(token_ids)
        for layer, (reference, bf16) in enumerate(
            zip(keys_and_values(exact, token_ids), keys_and_values(rounded, token_ids), strict=True)
        ):
            for tensor in range(2):
                errors[layer, tensor, 0] += np.square(stored[layer][tensor][rows] - reference[tensor]).sum()
                errors[layer, tensor, 1] += np.square(bf16[tensor] - reference[tensor]).sum()
    return errors


@pytest.mark.parametrize(("tensor", "name"), [(0, "k"), (1, "v")])
def test_every_layer_is_as_near_to_fp32_as_a_bf16_forward_is(
    squared_errors: NDArray[np.float64], tensor: int, name: str
) -> None:
    ratio = np.sqrt(squared_errors[:, tensor, 0] / squared_errors[:, tensor, 1])
    print(f"{name}: captured / bf16 distance from fp32, by layer:", np.round(ratio, 3))
    assert len(ratio) == 30
    assert ratio.max() <= 1.1
