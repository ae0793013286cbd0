"""`make bench`: the replay against what people use instead, on real captured values, as one table of ratios.

    python tests/bench/bench_replay.py [--trace NAME.kvtrace] [--values 50_000_000] [--repeats 5]

Without --trace the bundled sample's captured rows are repeated, under new request numbers, up to 500 MB of
K and V. Alternatives run at 1 and 10 candidates on at most --values values; what is beyond is extrapolated
and says so.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from alternatives import ALTERNATIVES, CALIBRATORS, UnavailableError  # noqa: E402
from big_trace import repeat_sample  # noqa: E402
from timing import median_seconds, once  # noqa: E402

from kvtrace.candidates import GivenScales  # noqa: E402
from kvtrace.evaluation.direct import as_tensor  # noqa: E402
from kvtrace.evaluation.profiled import replay_profile  # noqa: E402
from kvtrace.evaluation.reading import read_blocks  # noqa: E402
from kvtrace.profile.build import RowOrder, _count, _load, profile_tensors  # noqa: E402
from kvtrace.profile.store import StoredProfile, write_profile  # noqa: E402
from kvtrace.trace.cells import Cells, find_cells  # noqa: E402
from kvtrace.trace.reader import Trace, open_trace  # noqa: E402

CANDIDATES = (1, 10, 100, 1_000)
CPU = "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--values", type=int, default=50_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        trace = open_trace(options.trace or repeat_sample(Path(scratch) / "sample.kvtrace", 500_000_000))
        bench(trace, options.values, options.repeats, repeated=options.trace is None)


def bench(trace: Trace, max_values: int, repeats: int, *, repeated: bool) -> None:
    cells, num_values = find_cells(trace), count_values(trace)
    print(machine())
    print(
        f"{trace.path.name}: {len(trace.tokens):,} tokens, {num_values / 1e6:,.0f} M values "
        f"({num_values * 2 / 1e6:,.0f} MB), {len(cells)} cells"
        + (", the sample's captured rows repeated" if repeated else "")
    )
    read = median_seconds(lambda: drain(read_blocks(trace)), repeats)
    profile = median_seconds(lambda: drain(profile_tensors(trace, cells, CPU)), repeats)
    print(f"\nread only       {read:8.2f} s  {read / num_values * 1e9:6.2f} ns a value")
    print(f"read + profile  {profile:8.2f} s  {profile / num_values * 1e9:6.2f} ns a value")
    alone = profile_alone(trace, cells, repeats)
    print(f"profile alone   {alone:17.2f} ns a value and thread, once its rows are sorted")
    later = evaluate(trace, repeats, num_values)
    ours = [profile + seconds for seconds in later]
    sample = some_values(trace, max_values)
    scales = np.random.default_rng(0).uniform(0.2, 2.0, 10) * float(sample.abs().max()) / 448
    print(f"\n{'seconds for N candidates, read included':44s}" + "".join(f"{n:>12,}" for n in CANDIDATES))
    print(f"{'kvtrace, first replay (read + profile + that)':44s}" + row(ours))
    print(f"{'kvtrace, later replay (over the kept profile)':44s}" + row(later))
    print("tables of a run are written by none of them")
    print(f"alternatives on {len(sample) / 1e6:.0f} M values at N = 1 and 10; * = extrapolated linearly")
    factor = num_values / len(sample)
    for name, prepare in ALTERNATIVES.items():
        try:
            run = prepare(sample)
        except UnavailableError as error:
            print(f"{name:44s} not run: {error}")
            continue
        one, ten = (median_seconds(lambda n=n, run=run: run(scales[:n]), repeats) for n in (1, 10))
        each = (ten - one) / 9
        seconds = [read + (one + each * (n - 1)) * factor for n in CANDIDATES]
        ratios = [theirs / own for theirs, own in zip(seconds, ours, strict=True)]
        print(f"{name:44s}" + row(seconds, marks="*" * 4 if factor > 1 else "  **"))
        print(f"{'    × kvtrace, first replay':44s}" + row(ratios))
    bench_calibrators(sample[: max_values // 20], num_values, read)


def profile_alone(trace: Trace, cells: Cells, repeats: int) -> float:
    """Return the ns a value that counting takes one thread, over every sixth layer.

    A layer is read, unpacked and then counted once, as in a replay: its values come from the caches that it
    has just been written to, or from memory where others have claimed them.
    """
    order, seconds, num_values = RowOrder(cells.of_token, len(cells)), 0.0, 0
    for layer, tensor in itertools.product(sorted(trace.layers)[::6], "kv"):
        refs = [ref for ref in trace.block_refs() if (ref.layer.index, ref.tensor) == (layer, tensor)]
        rows, times = order.of(refs), []
        for _ in range(repeats):
            values = _load(refs)
            times.append(once(lambda v=values, r=rows: _count(v, r, tuple(range(v.shape[1])), CPU)))
        seconds += statistics.median(times)
        num_values += len(rows.row) * values[0].size
    return seconds / num_values * 1e9


def bench_calibrators(sample: torch.Tensor, num_values: int, read: float) -> None:
    """One pass each, once: they search a scale on their own, however many candidates that takes."""
    print(f"calibrators, one pass over {len(sample) / 1e6:.1f} M values, once; * = extrapolated linearly")
    for name, prepare in CALIBRATORS.items():
        try:
            run = prepare(sample)
            seconds = once(lambda run=run: run([1.0])) * num_values / len(sample) + read
            print(f"{name:44s}{seconds:>11,.2f}*")
        except UnavailableError as error:
            print(f"{name:44s} not run: {error}")


def machine() -> str:
    load = os.getloadavg()[0]
    busy = f"; NOT IDLE, load {load:.1f}: ratios are noisy" if load > 0.5 else ""
    name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} CPUs, torch {torch.__version__}{busy}"


def count_values(trace: Trace) -> int:
    per_token = sum(
        len(layer.kv_heads) * (layer.head_dim_k + layer.head_dim_v) for layer in trace.layers.values()
    )
    return per_token * len(trace.tokens)


def drain(items: object) -> None:
    for _ in items:  # type: ignore[attr-defined]
        pass


def evaluate(trace: Trace, repeats: int, num_values: int) -> list[float]:
    """Seconds to evaluate N candidates over a kept profile, and what of the files that reads."""
    cells = find_cells(trace)
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        start = time.perf_counter()
        stored = write_profile(trace, cells, profile_tensors(trace, cells, CPU), Path(scratch) / "profile")
        took = time.perf_counter() - start
        size = sum(file.stat().st_size for file in stored.path.rglob("*") if file.is_file())
        print(
            f"and kept        {took:8.2f} s, once: {size / 1e6:,.1f} MB, {size / num_values:.2f} bytes each"
        )
        random = np.random.default_rng(0)
        keys = [(n, head, t) for n, layer in trace.layers.items() for head in layer.kv_heads for t in "kv"]
        applied = []
        for i in range(max(CANDIDATES)):
            scales = 10 / 448 * 2 ** random.uniform(-2, 3, len(keys))
            candidate = GivenScales(str(i), dict(zip(keys, scales.tolist(), strict=True)))
            applied.append(candidate.scales_for(trace))
        seconds, before = [], bytes_read()
        for number in CANDIDATES:
            chosen = applied[:number]
            seconds.append(
                median_seconds(
                    lambda a=chosen: drain(
                        replay_profile(
                            StoredProfile(stored.path, stored.record), cells, a, CPU, with_vectors=False
                        )
                    ),
                    repeats,
                )
            )
        a_time = (bytes_read() - before) / (len(CANDIDATES) * (repeats + 1))
    print(
        "evaluation of a ready profile: "
        + ", ".join(f"{n:,}: {s:.2f} s" for n, s in zip(CANDIDATES, seconds, strict=True))
    )
    print(f"each further candidate: {(seconds[-1] - seconds[0]) / (CANDIDATES[-1] - 1) * 1e3:.2f} ms")
    print(f"files read a time: {a_time / 1e6:.1f} MB; the tensors hold {num_values * 2 / 1e6:,.0f} MB")
    return seconds


def bytes_read() -> int:
    """What this process has read from files, pages in memory included."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def some_values(trace: Trace, max_values: int) -> torch.Tensor:
    """The first values of the trace, bfloat16, up to `max_values`, taken evenly over the layers."""
    share = max_values // (2 * len(trace.layers))
    taken: dict[tuple[int, str], list[torch.Tensor]] = {}
    for block in read_blocks(trace):
        parts = taken.setdefault((block.layer.index, block.tensor), [])
        left = share - sum(part.numel() for part in parts)
        if left > 0:
            parts.append(as_tensor(block, CPU).flatten()[:left].clone())
    return torch.cat([part for parts in taken.values() for part in parts])


def row(numbers: list[float], marks: str = "    ") -> str:
    return "".join(f"{number:>11,.2f}{mark}" for number, mark in zip(numbers, marks, strict=True))


if __name__ == "__main__":
    main()
