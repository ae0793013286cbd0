"""Speed of attention replayed: `make bench-attention`. One thread of the CPU, or a GPU with --device cuda.

64 probes of 8,192 tokens in 30 layers of 9 query and 3 KV heads of 64, as SmolLM2-135M has them, of random
values: what is timed does not depend on them. Printed per candidate: CPU seconds of the replay with its round
trip, for the output alone and for all metrics, apart from what all candidates share; and the most memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvtrace.attention.quantizers import Quantizer, coded, keep, static_fp8
from kvtrace.attention.replay import Restored, replay_layer
from kvtrace.formats import find_format
from kvtrace.formats.coding import RowCoding
from kvtrace.trace.queries import AttentionLayer, AttentionValues

if TYPE_CHECKING:
    from kvtrace.attention.replay import Metrics

HEADS, KV_HEADS, DIM = 9, 3, 64
FORMATS = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "turboquant_3bit_nc")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    values = random_values(asked.tokens, asked.probes)
    candidates = {
        "none (bf16)": keep,
        "FP8, a scale a tensor": fp8([0.02]),
        "FP8, a scale a head": fp8([0.02, 0.03, 0.04]),
        **{name: of_format(name) for name in FORMATS},
    }
    where = f"{asked.probes} probes × {asked.tokens:,} tokens × {asked.layers} layers × {HEADS} heads"
    print(f"{where}, {asked.device}, one thread; best and worst of {asked.repeat}, seconds")
    for metrics in ("output", "all"):
        shared = timed(values, [], metrics, asked)
        print(f"{metrics:8} shared by all candidates  {shared[0]:6.2f} {shared[1]:6.2f}")
        for name, quantizer in candidates.items():
            best, worst = timed(values, [quantizer], metrics, asked)
            print(f"{metrics:8} {name:25} {best - shared[0]:6.2f} {worst - shared[0]:6.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most memory: {peak:,.0f} MiB, Python and torch included")


def timed(
    values: AttentionValues, quantizers: list[Quantizer], metrics: Metrics, asked: argparse.Namespace
) -> tuple[float, float]:
    """Return the least and the most seconds for all layers; one layer's values stand for each."""
    found = []
    for _ in range(asked.repeat):
        started = clock(asked.device)
        for _ in range(asked.layers):
            replay_layer(values, quantizers, metrics=metrics, device=asked.device)
        found.append(clock(asked.device) - started)
    return min(found), max(found)


def clock(device: str) -> float:
    """Return this process's CPU time, or with a GPU the wall's once it is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def random_values(num_tokens: int, num_probes: int) -> AttentionValues:
    """Return one layer's values, rounded to bf16 as captured ones are."""
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int, heads: int) -> np.ndarray:
        return torch.randn(rows, heads, DIM, generator=generator).bfloat16().float().numpy()

    layer = AttentionLayer(
        index=0,
        name="bench",
        kv_heads=tuple(range(KV_HEADS)),
        query_heads=tuple(range(HEADS)),
        kv_head_of=tuple(head * KV_HEADS // HEADS for head in range(HEADS)),
        softmax_scale=DIM**-0.5,
        sliding_window=None,
        soft_cap=None,
        sinks=None,
        query_is_fp8=False,
        not_replayable=(),
    )
    return AttentionValues(
        request=0,
        layer=layer,
        q=drawn(num_probes, HEADS),
        query_position=np.linspace(0, num_tokens - 1, num_probes).astype(np.int32),
        k=drawn(num_tokens, KV_HEADS),
        v=drawn(num_tokens, KV_HEADS),
        key_position=np.arange(num_tokens, dtype=np.int32),
        o=None,
    )


def fp8(scales: list[float]) -> Quantizer:
    return lambda exact: Restored(
        *(
            static_fp8(x, scales, engine="vllm-cuda", fmt="e4m3fn", dtype="bfloat16")
            for x in (exact.k, exact.v)
        )
    )


def of_format(name: str) -> Quantizer:
    cache = find_format(name)
    assert isinstance(cache.k, RowCoding)
    assert isinstance(cache.v, RowCoding)
    k, v = cache.k, cache.v
    return lambda exact: Restored(
        coded(exact.k, k, None, dtype="bfloat16"), coded(exact.v, v, None, dtype="bfloat16")
    )


if __name__ == "__main__":
    main()
