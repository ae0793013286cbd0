"""Time and peak memory of a first replay with 100 candidates at three trace sizes: linear, and bounded.

    python tests/bench/replay_size.py [--gigabytes 0.5 1.5 4.5] [--candidates 100]

Traces are the bundled sample's captured rows, repeated under new request numbers. Each replay is a process
of its own, so that the peak is its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent)]

from big_trace import repeat_sample  # noqa: E402

from kvtrace.candidates import Bf16, GivenScales  # noqa: E402
from kvtrace.evaluation import ReplayRequest, replay  # noqa: E402
from kvtrace.trace.reader import open_trace  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5, 1.5, 4.5])
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        replay_once(options.one, options.candidates)
        return
    print(f"{'K and V':>10} {'tokens':>12} {'seconds':>9} {'s a GB':>8} {'peak MB':>9}")
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
            path = repeat_sample(Path(scratch) / "sample.kvtrace", int(gigabytes * 1e9))
            arguments = [
                sys.executable,
                __file__,
                "--one",
                str(path),
                "--candidates",
                str(options.candidates),
            ]
            subprocess.run(arguments, check=True)


def replay_once(path: Path, num_candidates: int) -> None:
    trace = open_trace(path)
    keys = [(n, head, t) for n, layer in trace.layers.items() for head in layer.kv_heads for t in "kv"]
    random = np.random.default_rng(0)
    candidates = [Bf16()]
    for i in range(num_candidates):
        scales = (10 / 448 * 2 ** random.uniform(-2, 3, len(keys))).tolist()
        candidates.append(GivenScales(f"candidate {i}", dict(zip(keys, scales, strict=True))))
    start = time.perf_counter()
    replay(ReplayRequest([trace], candidates), path.parent / "run")
    seconds = time.perf_counter() - start
    per_token = sum(
        2 * len(layer.kv_heads) * (layer.head_dim_k + layer.head_dim_v) for layer in trace.layers.values()
    )
    gigabytes = per_token * len(trace.tokens) / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    tokens = len(trace.tokens)
    print(f"{gigabytes:>7.2f} GB {tokens:>12,} {seconds:>9.2f} {seconds / gigabytes:>8.2f} {peak:>9,.0f}")


if __name__ == "__main__":
    main()
