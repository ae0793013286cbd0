"""`make faults`: damage, forgeries, kills and broken disks, and a table of what was shown.

`python -m faults [--seed N] [--cases N] [--kills N] [--forgeries N]`. Seeds differ from run to run unless
pinned. Exit code 1 if anything is not as it should be. `python -m faults.in_vllm` goes on with a real vLLM.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from typing import TYPE_CHECKING

from faults.commands import end_commands, fill_disks
from faults.disk import FAULTS
from faults.forged import forged_table, run_forged
from faults.fuzz import fuzz_table, run_fuzz
from faults.kills import kill_writers
from faults.scratch import scratch

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults")
    parser.add_argument("--seed", type=int, help="pins every case; else drawn anew")
    parser.add_argument("--cases", type=int, default=1000, help="damaged traces")
    parser.add_argument("--kills", type=int, default=100, help="writers killed with kill -9")
    parser.add_argument("--commands", type=int, default=200, help="commands killed or interrupted")
    parser.add_argument("--forgeries", type=int, default=256, help="forged profiles, a process each")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}\n", flush=True)
    started = time.monotonic()
    with scratch() as folder:
        num_wrong = _disks(folder) + _kills(folder, seed, options.kills)
        num_wrong += _commands(folder, seed, options.commands)
        num_wrong += _forged(seed, options.forgeries) + _fuzz(seed, options.cases)
    print(f"\n{num_wrong or 'nothing'} wrong; {time.monotonic() - started:.0f} s")
    return 1 if num_wrong else 0


def _disks(folder: Path) -> int:
    print("FAULTS of a process that feeds real steps to the real writer")
    num_wrong = 0
    for fault in FAULTS:
        own = folder / fault.__name__
        own.mkdir()
        try:
            shown = fault(own)
        except PermissionError as error:
            shown = f"not run: {error}"
        except Exception as error:  # noqa: BLE001 -- printed, and counted
            shown, num_wrong = f"WRONG: {type(error).__name__}: {error}", num_wrong + 1
        print(f"  {fault.__name__.replace('_', ' '):<22} {shown}", flush=True)
    return num_wrong


def _kills(folder: Path, seed: int, num_kills: int) -> int:
    own = folder / "kills"
    own.mkdir()
    kills = list(kill_writers(own, seed, num_kills))
    wrong = [kill for kill in kills if kill.problem]
    handed, known, stored = (
        sum(getattr(kill, name) for kill in kills)
        for name in ("num_handed", "num_acknowledged", "num_stored")
    )
    print(
        f"\nKILL -9 of such a process, {len(kills)} times\n"
        f"  {len(kills) - len(wrong)} traces open and hold every committed row bit for bit: {handed:,} rows\n"
        f"  were handed over, {known:,} known to be committed before the death, {stored:,} found;\n"
        f"  {sum(not kill.num_stored for kill in kills)} died before their first commit"
    )
    for kill in wrong:
        print(f"  WRONG: kill {kill.number}: {kill.problem}")
    return len(wrong)


def _commands(folder: Path, seed: int, num_cases: int) -> int:
    own = folder / "commands"
    (own / "full").mkdir(parents=True)
    (own / "ended").mkdir()
    try:
        full = list(fill_disks(own / "full"))
    except PermissionError as error:
        full = []
        print(f"\nCOMMANDS on a full disk: not run: {error}")
    cases = [*full, *end_commands(own / "ended", seed, num_cases)]
    wrong = [case for case in cases if case.problem]
    print(
        f"\nCOMMANDS that have no disk ({len(full)}), are killed or interrupted ({len(cases) - len(full)}):\n"
        f"  {len(cases) - len(wrong)} left an output that is whole, or the one that was there"
    )
    for case in wrong:
        print(f"  WRONG: {case.command}, {case.what}: {case.problem}")
    return len(wrong)


def _forged(seed: int, num_cases: int) -> int:
    cases = list(run_forged(seed, num_cases))
    wrong = [case for case in cases if case.problem]
    print(
        f"\nFORGED PROFILES, their checksums made anew: {len(cases)} fresh processes, exit code 2 expected\n"
    )
    print(forged_table(cases))
    for case in wrong:
        print(f"  WRONG: case {case.number}, {case.kind}, {case.directory}, {case.command}: {case.problem}")
    return len(wrong)


def _fuzz(seed: int, num_cases: int) -> int:
    cases = list(run_fuzz(seed, num_cases))
    wrong = [case for case in cases if case.problem]
    print(f"\nINTEGRITY, {len(cases)} traces with one damaged file each: what every reader made of them\n")
    print(fuzz_table(cases))
    for case in wrong:
        print(f"  WRONG: case {case.number}, {case.damage}: {case.problem}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
