"""`make fuzz`: files from strangers, and a table of how commands ended.

`python -m fuzz [--seed N] [--cases N] [--fresh N] [--only KIND]`. Exit code 1 if anything is not as it should
be.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from faults.scratch import scratch

from fuzz.bases import Bases
from fuzz.judge import judge
from fuzz.kinds import BEFORE_CHECKSUMS, KINDS, REACH_NATIVE_CODE
from fuzz.processes import ANEW, Processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fuzz.judge import Ended


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seed", type=int, help="pins every case; else drawn anew")
    parser.add_argument("--cases", type=int, default=20_000, help="in this process")
    parser.add_argument(
        "--fresh", type=int, default=2_000, help="in a process each, of what reaches native code"
    )
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    with scratch() as folder:
        bases = Bases(folder)
        kinds = [kind for kind in KINDS if options.only in kind]
        wrong = _run(bases, folder, f"{seed}", options.cases, kinds)
        kinds = [kind for kind in kinds if kind in REACH_NATIVE_CODE]
        if options.fresh and kinds:
            with Processes(folder) as processes:
                wrong += _run(bases, folder, f"{seed}:fresh", options.fresh, kinds, processes)
    print(f"\n{wrong or 'nothing'} wrong; {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


def _run(
    bases: Bases,
    folder: Path,
    seed: str,
    cases: int,
    kinds: Sequence[str],
    processes: Processes | None = None,
) -> int:
    ended: dict[str, list[Ended]] = {kind: [] for kind in kinds}
    wrong = 0
    try:
        for number in range(cases):
            kind = kinds[number % len(kinds)]
            try:
                ended[kind].append(one_case(bases, folder, kind, f"{seed}:{number}", processes))
            except Exception as error:  # noqa: BLE001 -- printed, and counted
                wrong += 1
                text = f"{type(error).__name__}: {str(error)[:1500]}"
                print(f"WRONG: {kind}, case {seed}:{number}: {text}", flush=True)
    finally:  # after Ctrl-C too
        print(_table(ended, processes), flush=True)
    return wrong


def _table(ended: dict[str, list[Ended]], processes: Processes | None) -> str:
    past = sum(len(cases) for kind, cases in ended.items() if kind not in BEFORE_CHECKSUMS)
    total = sum(map(len, ended.values()))
    lines = [f"\n{total:,} cases in this process, {past:,} of them beyond all checksums"]
    if processes is not None:
        lines = [
            f"\n{total:,} cases in a process each: {processes.num_anew:,} a Python of its own (1 in {ANEW}), "
            "the others forked from one that has imported all and run nothing; the largest took "
            f"{processes.most_bytes / 1e6:,.0f} MB"
        ]
    for kind, cases in ended.items():
        codes = Counter(one.code for one in cases)
        shown = ", ".join(f"{count:,} ended with {code}" for code, count in sorted(codes.items()))
        compared = sum(one.counts_compared for one in cases)
        numpy = f"; counts of {compared:,} are numpy's" if compared else ""
        lines.append(f"  {kind:<22}{len(cases):>6,} cases: {shown}{numpy}")
    return "\n".join(lines)


def one_case(bases: Bases, folder: Path, kind: str, seed: str, processes: Processes | None = None) -> Ended:
    """Draw a case and judge it. It depends on the kind and the seed alone."""
    own = folder / "case"
    own.mkdir()
    try:
        return judge(own, KINDS[kind](bases, random.Random(seed), own), processes)
    finally:
        shutil.rmtree(own)


if __name__ == "__main__":
    sys.exit(main())
