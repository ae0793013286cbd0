"""Time and peak memory of a report on many candidates, as text and as a page; and the size of the page.

    python tests/bench/report_size.py [--keep DIR] [--candidates 100]

The run is generated: 80 layers × 8 heads × K/V under so many candidates. Each report is a process of its own,
so its peak is its own. Beside each stands what it took on the same run when every candidate was told of
head by head: 100 candidates, commit 97b926d, two cores shared with others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from support.large_run import large_run  # noqa: E402

from kvtrace.runs.schema import RUN_FILE  # noqa: E402

MOST_MB = {"text": 500, "html": 1000}
MOST_PAGE_MB = 5.0


@dataclass(frozen=True)
class Cost:
    """Of one process. cpu: user and system, in seconds; wall time says more of who else was there."""

    cpu: float
    peak_mb: float
    written_mb: float


BEFORE = {"text": Cost(53.6, 1347, 0.04), "html": Cost(108.9, 2432, 22.34)}


def main() -> None:
    """Make the run, report on it in both formats, print a line for each; exit 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", type=Path, help="make the run there, or use the one that is there")
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        large_run(options.make, options.candidates)
        return
    with tempfile.TemporaryDirectory(prefix="kvtrace-bench-") as scratch:
        run = options.keep or Path(scratch) / "large.run"
        if not (run / RUN_FILE).exists():
            # In a process of its own: a child's largest resident set counts what its parent held at the fork.
            made = [sys.executable, __file__, "--make", str(run), "--candidates", str(options.candidates)]
            subprocess.run(made, check=True)
        print(f"{'kvtrace report, 1,280 heads':<30} {'CPU s':>9} {'peak MB':>9} {'written MB':>11}")
        found = {name: reported(run, name, Path(scratch) / f"report.{name}") for name in MOST_MB}
        for name, cost in found.items():
            shown(f"{name}, {options.candidates:,} candidates", cost)
            shown(f"{name}, 100 candidates, before", BEFORE[name])
    if any(found[name].peak_mb > most for name, most in MOST_MB.items()):
        raise SystemExit(f"a report takes more than {MOST_MB} MB")
    if found["html"].written_mb > MOST_PAGE_MB:
        raise SystemExit(f"the page has more than {MOST_PAGE_MB} MB")


def reported(run: Path, name: str, output: Path) -> Cost:
    """Return what a report in one format takes."""
    command = [sys.executable, "-m", "kvtrace", "report", str(run), "--format", name, "-o", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, output.stat().st_size / 1e6)


def shown(what: str, cost: Cost) -> None:
    """Print one line."""
    print(f"{what:<30} {cost.cpu:>9.1f} {cost.peak_mb:>9,.0f} {cost.written_mb:>11.2f}")


if __name__ == "__main__":
    main()
