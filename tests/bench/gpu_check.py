"""`make gpu-check`: on a CUDA device, equality with the CPU, nanoseconds a value, share of memory bandwidth.

    python tests/bench/gpu_check.py [--device cuda] [--values 100_000_000]

Counts must be equal and squared sums within 1e-9; the script ends with exit code 1 otherwise. The bandwidth
is that of a device-to-device copy measured here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvtrace.candidates import GivenScales, ServingSetup
from kvtrace.errors import DeviceError
from kvtrace.evaluation.device import choose_device
from kvtrace.evaluation.direct import replay_directly
from kvtrace.evaluation.profiled import replay_profile
from kvtrace.evaluation.sums import sums_alone
from kvtrace.evaluation.verify import check_equal
from kvtrace.numerics import ENGINES, quantize, round_trip
from kvtrace.profile import cpu_kernel, gpu_kernel
from kvtrace.profile.build import profile_tensors
from kvtrace.profile.store import write_profile
from kvtrace.trace.cells import find_cells
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = Path(__file__).parents[2] / "samples/smollm2-135m.kvtrace"
CPU = "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--values", type=int, default=100_000_000)
    options = parser.parse_args()
    try:
        device = choose_device(options.device)
    except DeviceError as error:
        sys.exit(str(error))
    name = torch.cuda.get_device_name(device) if device != "cpu" else "the CPU, as a test of this script"
    print(f"on {name}, torch {torch.__version__}")
    check_codes(device)
    check_replay(device)
    measure(device, options.values)


def check_codes(device: str) -> None:
    """Every finite 16-bit pattern through every engine and format, code by code."""
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        x = x[torch.isfinite(x)]
        scale = torch.tensor([1 / 448, 0.013, 0.37, 1.0, 2.0, 1e4])[:, None]
        for engine in ENGINES.values():
            for fmt in engine.formats:
                here = quantize(x, scale, engine=engine.name, format=fmt)
                there = quantize(x.to(device), scale.to(device), engine=engine.name, format=fmt).cpu()
                require(torch.equal(here, there), f"codes of {engine.name} {fmt} {dtype}")


def check_replay(device: str) -> None:
    """The sample's sums by profile and element by element, on the device and on the CPU."""
    trace = open_trace(SAMPLE)
    cells = find_cells(trace)
    keys = [(n, head, t) for n, layer in trace.layers.items() for head in layer.kv_heads for t in "kv"]
    applied = []
    for engine in ("vllm-cuda", "vllm-cpu", "sglang"):
        candidate = GivenScales(engine, dict.fromkeys(keys, 0.01), ServingSetup(engine))
        applied.append(candidate.scales_for(trace))
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as scratch:
        tensors = profile_tensors(trace, cells, device)
        profile = write_profile(trace, cells, tensors, Path(scratch) / "profile")
        on_cpu = list(sums_alone(replay_profile(profile, cells, applied, CPU)))
        check_equal(sums_alone(replay_profile(profile, cells, applied, device)), on_cpu)
    check_equal(sums_alone(replay_directly(trace, cells, applied, device)), on_cpu)
    print("equal: profile made and evaluated on the device, element-wise replay there, profile on the CPU")


def measure(device: str, num_values: int) -> None:
    random = np.random.default_rng(0)
    rows = max(1, num_values // (8 * 128))
    values = torch.randn(rows, 8, 128, generator=torch.Generator().manual_seed(0)).mul_(3).bfloat16()
    bits = values.view(torch.int16).numpy().view(np.uint16)
    order, cell_start = random.permutation(rows), np.linspace(0, rows, 61).astype(np.int64)
    on_device, size = values.to(device), bits.size
    copy = seconds(device, lambda: on_device.clone())
    bandwidth = 2 * 2 * size / copy
    count = seconds(device, lambda: gpu_kernel.count_magnitudes(bits, order, cell_start, device))
    trip = seconds(device, lambda: round_trip(on_device, 0.01))
    cpu = seconds(CPU, lambda: cpu_kernel.count_magnitudes(bits, order, cell_start))
    print(f"copy on the device            {bandwidth / 1e9:8.0f} GB/s")
    for label, taken in (("counting, transfer included", count), ("round trip, element-wise", trip)):
        share = 2 * size / taken / bandwidth
        print(f"{label:30s}{taken / size * 1e9:8.3f} ns a value, {share:6.1%} of that bandwidth")
    print(f"counting on one CPU thread    {cpu / size * 1e9:8.3f} ns a value")


def seconds(device: str, run: Callable[[], object]) -> float:
    """Return the shortest of five runs after one that does not count."""
    best = float("inf")
    for attempt in range(6):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        if attempt:
            best = min(best, time.perf_counter() - start)
    return best


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def require(holds: bool, what: str) -> None:
    if not holds:
        print(f"NOT EQUAL: {what}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
