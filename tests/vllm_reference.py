"""Captured K and V against Hugging Face transformers on the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from vllm_engines import StoredTrace


def distances_from_fp32(
    model: Path, trace: StoredTrace, outputs: dict[int, dict[str, Any]]
) -> NDArray[np.float64]:
    """Return K and V's distance from an fp32 forward, [layer, k or v, captured or a bf16 forward].

    outputs: by request number, its prompt and output token ids. Distances are root sums of squares over all
    captured tokens of these requests, which must be captured at every position.
    """
    import torch
    from transformers import AutoModelForCausalLM

    networks = [
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    ]
    stored = [[trace.values(layer, tensor) for tensor in "kv"] for layer in range(len(trace.layers))]
    squares = np.zeros((len(stored), 2, 2))
    for request, output in outputs.items():
        token_ids = (output["prompt"] + output["output"])[:-1]
        rows = trace.rows_of(request)
        assert len(rows) == len(token_ids)
        exact, rounded = (_keys_and_values(network, token_ids) for network in networks)
        for layer, tensors in enumerate(stored):
            for tensor in range(2):
                captured = tensors[tensor][rows]
                squares[layer, tensor, 0] += np.square(captured - exact[layer][tensor]).sum()
                squares[layer, tensor, 1] += np.square(rounded[layer][tensor] - exact[layer][tensor]).sum()
    return np.sqrt(squares)


def _keys_and_values(network: Any, token_ids: list[int]) -> list[list[NDArray[np.float32]]]:
    """Return [layer][k or v], each [token, kv_head, head_dim]; whole, also where layers have a window."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    with torch.no_grad():
        network(torch.tensor([token_ids]), past_key_values=cache, use_cache=True)
    return [[x[0].transpose(0, 1).float().numpy() for x in (c.keys, c.values)] for c in cache.layers]
