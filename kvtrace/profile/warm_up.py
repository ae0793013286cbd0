"""Compile the CPU kernels and keep them: `python -m kvtrace.profile.warm_up`, some seconds once.

Without it the first replay or calibration compiles them.
"""

from __future__ import annotations

import numpy as np

from kvtrace.numerics.compiled import cache_write
from kvtrace.numerics.counted import counted_errors, segment_sums
from kvtrace.numerics.limits import max_in_range_code
from kvtrace.profile.cpu_kernel import count_magnitudes


def compile_kernels() -> None:
    """Call each kernel once with the types that it is used with."""
    one = np.ones(1, np.float32)
    count_magnitudes(np.zeros((1, 1, 1), np.uint16), np.zeros(1, np.int64), np.array([0, 1]))
    max_in_range_code(one, "bfloat16", engine="vllm-cuda", format="e4m3fn")
    write = cache_write("vllm-cuda", "e4m3fn", "bfloat16")
    counted_errors(one, np.zeros(1, np.uint32), np.ones(1), np.array([0, 1]), one, write)
    segment_sums(np.zeros(1, np.uint16), np.ones(1), np.array([0, 1]), one)


if __name__ == "__main__":
    compile_kernels()
