"""ns a value of every cache format: compiled beside its torch form, one thread; and the memory of a replay.

`make bench` runs it. Values are N(0, 1) in bfloat16, 512 vectors of 128: they stay in cache, as in a replay.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvtrace.formats import FORMATS
from kvtrace.formats.coding import RowCoding

if TYPE_CHECKING:
    from collections.abc import Callable

VECTORS, HEAD_DIM, ROUNDS = 512, 128, 25
LIMITS_NS = {"fp8_per_token_head": 3.0, "int8_per_token_head": 3.0}
SLOWEST_NS = 20.0


def main() -> int:
    """Print the table; 1 where a format is slower than it may be."""
    torch.set_num_threads(1)
    x = torch.randn(VECTORS, HEAD_DIM, generator=torch.Generator().manual_seed(0)).bfloat16()
    wide, scale = x.float().numpy(), np.ones(VECTORS, np.float32)
    restored = np.empty_like(wide)
    too_slow = []
    print(f"{'cache dtype':22}{'K compiled':>12}{'torch':>9}{'V compiled':>12}{'torch':>9}   ns a value")
    for name, form in FORMATS.items():
        times = []
        for coding in (form.k, form.v):
            if isinstance(coding, RowCoding):
                kernel = coding.kernel(HEAD_DIM, "bfloat16")
                times += [
                    _ns(lambda kernel=kernel: kernel.fill(wide, scale, restored)),
                    _ns(lambda coding=coding: coding.round_trip(x)),
                ]
        if times:
            print(f"{name:22}{times[0]:12.2f}{times[1]:9.2f}{times[2]:12.2f}{times[3]:9.2f}")
            if max(times[0], times[2]) > LIMITS_NS.get(name, SLOWEST_NS):
                too_slow.append(name)
    _print_memory(wide, restored, scale)
    if too_slow:
        print(f"slower than they may be: {', '.join(too_slow)}")
    return bool(too_slow)


def _ns(work: Callable[[], object]) -> float:
    """Return the time of a value in the fastest of some rounds."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best / (VECTORS * HEAD_DIM) * 1e9


def _print_memory(wide: np.ndarray, restored: np.ndarray, scale: np.ndarray) -> None:
    """Print what the process grows by while a hundred thousand vectors go through every kernel."""
    kernels = [
        coding.kernel(HEAD_DIM, "bfloat16")
        for form in FORMATS.values()
        for coding in (form.k, form.v)
        if isinstance(coding, RowCoding)
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        for kernel in kernels:
            kernel.fill(wide, scale, restored)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory: {(after - before) / 1024:.1f} MiB more after {200 * VECTORS:,} vectors through each")


if __name__ == "__main__":
    sys.exit(main())
