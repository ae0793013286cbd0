"""The search for the scale of least error against one element-wise pass and llm-compressor's `mse` observer.

    python tests/bench/bench_calibrate.py [--trace NAME.kvtrace] [--megabytes 500] [--values 2_000_000]

Without --trace the bundled sample's captured rows are repeated. The observer runs on --values values, once;
what is beyond is extrapolated linearly and marked *.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from alternatives import UnavailableError, llmcompressor_mse  # noqa: E402
from big_trace import repeat_sample  # noqa: E402
from timing import median_seconds, once  # noqa: E402

from kvtrace.calibration.calibrate import scales_of  # noqa: E402
from kvtrace.calibration.magnitudes import TraceSelection, count_magnitudes  # noqa: E402
from kvtrace.calibration.recipe import Recipe  # noqa: E402
from kvtrace.numerics import round_trip  # noqa: E402
from kvtrace.trace.reader import Trace, open_trace  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--values", type=int, default=2_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        repeated = Path(scratch) / "sample.kvtrace"
        bench(
            open_trace(options.trace or repeat_sample(repeated, options.megabytes * 1_000_000)),
            options.values,
        )


def bench(trace: Trace, max_values: int) -> None:
    everything = [TraceSelection(trace, np.zeros(len(trace.tokens), dtype=np.int64))]
    counting = median_seconds(lambda: count_magnitudes(everything, 1), 3)
    (groups,) = count_magnitudes(everything, 1)
    num_values = sum(m.num_values for m in groups.values())
    model = trace.record.model
    print(f"{trace.path.name}: {num_values / 1e6:,.0f} M values, {len(groups)} heads")
    row("read and count, once for every recipe", counting)
    for recipe in (Recipe("mse"), Recipe("mse", granularity="tensor")):
        seconds = median_seconds(lambda recipe=recipe: scales_of(groups, recipe, model), 3)
        row(f"search for the least error, per {recipe.granularity}", seconds)
    x = some_values(trace, max_values)
    row("one element-wise round trip*", median_seconds(lambda: round_trip(x, 0.05), 3) * num_values / len(x))
    try:
        run = llmcompressor_mse(x)
        row("llm-compressor mse observer*", once(lambda: run([1.0])) * num_values / len(x))
    except UnavailableError as error:
        print(f"llm-compressor mse observer: not run: {error}")


def some_values(trace: Trace, max_values: int) -> torch.Tensor:
    """The first values of the trace, bfloat16."""
    block = next(trace.blocks())
    return torch.from_numpy(block.values.view(np.int16)).view(torch.bfloat16).flatten()[:max_values]


def row(name: str, seconds: float) -> None:
    print(f"{name:44s}{seconds:>9.2f} s")


if __name__ == "__main__":
    main()
