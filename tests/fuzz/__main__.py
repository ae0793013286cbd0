"""`make fuzz`: files from strangers, and a table of how commands ended.

`python -m fuzz [--seed N] [--cases N] [--fresh N]`. Exit code 1 if anything is not as it should be.
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

from fuzz.judge import judge
from fuzz.kinds import KINDS, Bases

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seed", type=int, help="pins every case; else drawn anew")
    parser.add_argument("--cases", type=int, default=20_000, help="in this process")
    parser.add_argument(
        "--fresh", type=int, default=2_000, help="in a process each, of what reaches native code"
    )
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}\n", flush=True)
    started = time.monotonic()
    with scratch() as folder:
        bases = Bases(folder)
        wrong = _run(bases, folder, seed, options.cases, tuple(KINDS), fresh=False)
        wrong += _run(
            bases, folder, seed + 1, options.fresh, ("records of a trace", "profiles", "runs"), fresh=True
        )
    print(f"\n{wrong or 'nothing'} wrong; {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


def _run(bases: Bases, folder: Path, seed: int, cases: int, kinds: tuple[str, ...], *, fresh: bool) -> int:
    ended: dict[str, Counter[int]] = {kind: Counter() for kind in kinds}
    wrong = 0
    for number in range(cases):
        kind = kinds[number % len(kinds)]
        try:
            ended[kind][one_case(bases, folder, kind, f"{seed}:{number}", fresh=fresh)] += 1
        except Exception as error:  # noqa: BLE001 -- printed, and counted
            wrong += 1
            print(
                f"WRONG: {kind}, case {seed}:{number}: {type(error).__name__}: {str(error)[:600]}", flush=True
            )
    print("in fresh processes" if fresh else "in process")
    for kind, codes in ended.items():
        shown = ", ".join(f"{count:,} ended with {code}" for code, count in sorted(codes.items()))
        print(f"  {kind:<20}{codes.total():>7,} cases: {shown}", flush=True)
    return wrong


def one_case(bases: Bases, folder: Path, kind: str, seed: str, *, fresh: bool) -> int:
    """Draw a case, judge it and return the exit code. It depends on the kind and the seed alone."""
    own = folder / "case"
    own.mkdir()
    try:
        _, arguments = KINDS[kind](bases, random.Random(seed), own)
        return judge(own, arguments, fresh=fresh)
    finally:
        shutil.rmtree(own)


if __name__ == "__main__":
    sys.exit(main())
