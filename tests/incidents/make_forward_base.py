"""Makes `forward.npz`: K and V of a StarCoder2 with random weights and biased K, by its forward pass.

Usage, where transformers is installed: python make_forward_base.py OUT.npz. Another family than Qwen and
Llama: layer norms with biases, a plain MLP, a bias in every projection. Positions beyond a prompt stand for
generated tokens: the model sees them the same way.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import Starcoder2Config, Starcoder2Model

SEED = 3_155
LAYERS, HEADS, HEAD_DIM = 6, 2, 32
NUM_TOKENS = 900
STRIDE = 24
WORKLOADS = ("english", "german", "chinese", "arabic", "hindi")
REQUESTS = 40


def main(out: str) -> None:
    """Write the captured rows to `out`."""
    torch.manual_seed(SEED)
    model = _model()
    draw = np.random.default_rng(SEED)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("request", "position", "kv")}
    lengths = []
    for number in range(REQUESTS):
        prompt = int(np.clip(110 * draw.lognormal(0, 0.8), 12, 700))
        output = int(np.clip(50 * draw.lognormal(0, 0.6), 8, 200))
        offset = int(draw.integers(min(STRIDE, prompt)))
        lengths.append((prompt, output, offset))
        first = 150 * (number % len(WORKLOADS))
        tokens = torch.from_numpy((first + draw.integers(0, 250, size=prompt + output)) % NUM_TOKENS)
        with torch.no_grad():
            cache = model(tokens[None], use_cache=True).past_key_values
        chosen = np.arange(offset, prompt + output, STRIDE)
        rows["request"].append(np.full(len(chosen), number))
        rows["position"].append(chosen)
        # [layers, 2, heads, rows, head_dim] → [rows, layers, 2, heads, head_dim], bits of bfloat16
        kv = torch.stack([torch.stack([one.keys[0], one.values[0]]) for one in cache.layers])
        bits = kv[:, :, :, chosen].permute(3, 0, 1, 2, 4).to(torch.bfloat16).contiguous().view(torch.int16)
        rows["kv"].append(bits.numpy().view(np.uint16))
    np.savez_compressed(
        Path(out),
        stride=STRIDE,
        workloads=np.array(WORKLOADS),
        lengths=np.array(lengths),
        **{name: np.concatenate(found) for name, found in rows.items()},
    )


def _model() -> Starcoder2Model:
    model = Starcoder2Model(
        Starcoder2Config(
            vocab_size=NUM_TOKENS,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=LAYERS,
            num_attention_heads=8,
            num_key_value_heads=HEADS,
            max_position_embeddings=2048,
            initializer_range=0.1,
            use_bias=True,
        )
    ).eval()
    for layer in model.layers:
        attention = layer.self_attn
        bias = torch.randn(HEADS, HEAD_DIM)
        for head in bias:
            head[torch.randperm(HEAD_DIM)[:2]] *= 25
        attention.k_proj.bias.data = bias.flatten()
        attention.v_proj.bias.data = 0.2 * torch.randn(HEADS * HEAD_DIM)
    return model


if __name__ == "__main__":
    main(sys.argv[1])
