"""Captured K and V against Hugging Face transformers on the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from support.vllm_engines import StoredTrace


def distances_from_fp32(
    model: Path, trace: StoredTrace | MergedTrace, outputs: dict[int, dict[str, Any]], *, e5m2: bool = False
) -> NDArray[np.float64]:
    """Return K and V's distance from an fp32 forward, [captured layer, k or v, captured or a bf16 forward].

    outputs: by request number, its prompt and output token ids. Distances are root sums of squares over all
    captured tokens of these requests, which must be captured at every position. e5m2: in both forwards
    attention reads K and V as vLLM's CPU operator stores them in that format at scale 1: truncated.
    """
    import torch
    from transformers import AutoModelForCausalLM

    networks = [
        AutoModelForCausalLM.from_pretrained(model, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    ]
    stored = [[trace.values(layer, tensor) for tensor in "kv"] for layer in trace.layer_indices]
    squares = np.zeros((len(stored), 2, 2))
    for request, output in outputs.items():
        token_ids = (output["prompt"] + output["output"])[:-1]
        rows = trace.rows_of(request)
        assert len(rows) == len(token_ids)
        exact, rounded = (_keys_and_values(network, token_ids, e5m2) for network in networks)
        for number, (layer, tensors) in enumerate(zip(trace.layer_indices, stored, strict=True)):
            for tensor in range(2):
                captured = tensors[tensor][rows]
                squares[number, tensor, 0] += np.square(captured - exact[layer][tensor]).sum()
                squares[number, tensor, 1] += np.square(rounded[layer][tensor] - exact[layer][tensor]).sum()
    return np.sqrt(squares)


def queries_and_outputs(
    model: Path, token_ids: list[int], dtype: str
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return, by layer of a Llama, Q after RoPE and the input of o_proj: [token, query_head, head_dim]."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.llama import modeling_llama

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    queries: list[NDArray[np.float32]] = []
    outputs: list[NDArray[np.float32]] = []
    rotate = modeling_llama.apply_rotary_pos_emb

    def note_query(*arguments: Any, **named: Any) -> Any:
        rotated = rotate(*arguments, **named)
        queries.append(rotated[0][0].transpose(0, 1).float().numpy())
        return rotated

    def note_output(module: Any, arguments: tuple[Any, ...]) -> None:
        outputs.append(arguments[0][0].float().numpy().reshape(queries[-1].shape))

    for layer in network.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(note_output)
    modeling_llama.apply_rotary_pos_emb = note_query
    try:
        with torch.no_grad():
            network(torch.tensor([token_ids]))
    finally:
        modeling_llama.apply_rotary_pos_emb = rotate
    return list(zip(queries, outputs, strict=True))


class MergedTrace:
    """A bfloat16 trace of several ranks, put together by kvtrace's own reader."""

    def __init__(self, path: Path) -> None:
        self._trace = open_trace(path)
        tokens, layers = self._trace.tokens, self._trace.layers
        self.layer_indices = list(layers)
        self._values = {
            (index, tensor): np.full((len(tokens), len(layer.kv_heads), head_dim), np.nan, np.float32)
            for index, layer in layers.items()
            for tensor, head_dim in (("k", layer.head_dim_k), ("v", layer.head_dim_v))
        }
        self.num_writes = {key: np.zeros(values.shape[:2], np.int64) for key, values in self._values.items()}
        """How often each token's head was found in a store: [token, kv_head]."""
        for block in self._trace.blocks():
            floats = (block.values.astype(np.uint32) << 16).view(np.float32)
            for axis, head in enumerate(block.kv_heads):
                self._values[block.layer.index, block.tensor][block.row, head] = floats[:, axis]
                self.num_writes[block.layer.index, block.tensor][block.row, head] += 1

    def values(self, layer: int, tensor: str) -> NDArray[np.float32]:
        """Return [token, kv_head, head_dim]; NaN where no rank has it."""
        return self._values[layer, tensor]

    def rows_of(self, request: int) -> NDArray[np.int64]:
        """Return the tokens of a request by position."""
        return np.flatnonzero(self._trace.tokens.request == request)


def _keys_and_values(network: Any, token_ids: list[int], e5m2: bool) -> dict[int, list[NDArray[np.float32]]]:
    """Return layer → [k, v], each [token, kv_head, head_dim]; whole, also where layers have a window."""
    import torch
    from transformers import DynamicCache

    class E5m2Cache(DynamicCache):  # type: ignore[misc]
        """It keeps K and V as they are, and gives attention what an FP8 cache would."""

        def update(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
            exact = super().update(*arguments, **options)
            return tuple(_truncated_to_e5m2(values) for values in exact)

    # Told of the model, a cache keeps the states of convolutions, and cuts K and V to a window.
    is_hybrid = "conv" in (getattr(network.config, "layer_types", None) or ())
    cache = (E5m2Cache if e5m2 else DynamicCache)(**({"config": network.config} if is_hybrid else {}))
    with torch.no_grad():
        network(torch.tensor([token_ids]), past_key_values=cache, use_cache=True)
    return {
        index: [x[0].transpose(0, 1).float().numpy() for x in (layer.keys, layer.values)]
        for index, layer in enumerate(cache.layers)
        if getattr(layer, "keys", None) is not None
    }


def _truncated_to_e5m2(values: Any) -> Any:
    """Cut values to two bits of mantissa, and E5M2's subnormals (below 2^-14) to multiples of 2^-16."""
    import torch

    exact = values.float()
    normal = (exact.view(torch.int32) & -(1 << 21)).view(torch.float32)
    subnormal = torch.trunc(exact * 2**16) / 2**16
    return torch.where(exact.abs() < 2**-14, subnormal, normal).to(values.dtype)
