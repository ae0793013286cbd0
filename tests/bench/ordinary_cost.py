"""What it costs to tell outlier channels apart, on a made trace whose K heads all have them, short and long.

    python tests/bench/ordinary_cost.py [--strides 96 24 6] [--candidates 1000] [--repeats 3]

A Qwen-like model, 28 layers of 4 KV heads × 128 with biased keys; a smaller stride captures more tokens of
the same requests. With and without, in turn, in one process: counting a profile, and evaluating candidates
over it. CPU seconds of all threads, least of the repeats.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1])]

from incidents.bench import whole_bench  # noqa: E402
from incidents.made_base import MODELS, MadeModel, made_base  # noqa: E402

from kvtrace.candidates import GivenScales  # noqa: E402
from kvtrace.candidates.applied import scale_keys  # noqa: E402
from kvtrace.evaluation import profiled  # noqa: E402
from kvtrace.profile.build import count_tensors  # noqa: E402
from kvtrace.profile.store import write_profile  # noqa: E402
from kvtrace.trace.cells import Cells, find_cells  # noqa: E402
from kvtrace.trace.reader import Trace, open_trace  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.candidates.applied import AppliedScales

CPU = "cpu"
QWEN = next(model for model in MODELS if model.bias_channels)


def main() -> None:
    """Print a line a trace: tokens, and with ÷ without for the profile and for candidates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strides", type=int, nargs="+", default=[96, 24, 6])
    parser.add_argument("--candidates", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':>15}{'counting a profile':>28}{f'{options.candidates:,} candidates':>28}")
    print(f"{'tokens':>8}{'cells':>7}" + 2 * f"{'without':>10}{'with':>8}{'ratio':>10}")
    for stride in options.strides:
        print(_measured(replace(QWEN, stride=stride), options.candidates, options.repeats), flush=True)


def _measured(model: MadeModel, num_candidates: int, repeats: int) -> str:
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as folder:
        trace = open_trace(whole_bench(0, Path(folder), made_base(model, 0), None).write("trace"))
        cells = find_cells(trace)
        profile = _in_turn(lambda: _counted(trace, cells), _counting_all, repeats)
        applied = _candidates(trace, num_candidates)
        counts = count_tensors(trace, cells.of_token, len(cells), CPU, outliers_apart=True)
        stored = write_profile(trace, cells, counts, Path(folder) / "profile")
        evaluated = _in_turn(
            lambda: [*profiled.replay_profile(stored, cells, applied, CPU, with_vectors=False)],
            _without_ordinary,
            repeats,
        )
        return f"{len(trace.tokens):>8,}{len(cells):>7}" + "".join(
            f"{off:>10.2f}{on:>8.2f}{on / off:>10.2f}" for on, off in (profile, evaluated)
        )


_apart = True


def _counted(trace: Trace, cells: Cells) -> None:
    for _ in count_tensors(trace, cells.of_token, len(cells), CPU, outliers_apart=_apart):
        pass


@contextmanager
def _counting_all() -> Iterator[None]:
    with patch(f"{__name__}._apart", new=False):
        yield


@contextmanager
def _without_ordinary() -> Iterator[None]:
    with patch.object(profiled, "ordinary_sums", lambda *_: None):
        yield


def _candidates(trace: Trace, number: int) -> list[AppliedScales]:
    keys, random = list(scale_keys(trace)), np.random.default_rng(0)
    return [
        GivenScales(
            str(i), dict(zip(keys, (10 / 448 * 2 ** random.uniform(-2, 3, len(keys))).tolist(), strict=True))
        ).scales_for(trace)
        for i in range(number)
    ]


def _in_turn(run: Callable[[], object], without: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the least CPU seconds with and without, after one of each that does not count."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        seconds[0].append(_cpu_seconds(run))
        with without():  # type: ignore[attr-defined]
            seconds[1].append(_cpu_seconds(run))
    return min(seconds[0][1:]), min(seconds[1][1:])


def _cpu_seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


if __name__ == "__main__":
    main()
