"""Medians of repeated runs."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of `repeats` runs, after one that does not count."""
    run()
    return statistics.median(once(run) for _ in range(repeats))


def once(run: Callable[[], object]) -> float:
    """Return the wall time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
