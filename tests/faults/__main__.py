"""`make faults`: damage, forgeries, kills and broken disks, and a table of what was shown.

`python -m faults [--seed N] [--cases N] [--kills N] [--commands N] [--forgeries N] [--only PART]`.
Seeds differ from run to run unless
pinned. Exit code 1 if anything is not as it should be. `python -m faults.in_vllm` goes on with a real vLLM.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from faults.commands import end_commands
from faults.disk import FAULTS
from faults.forged import forged_table, run_forged
from faults.full_disks import fill_disks
from faults.fuzz import fuzz_table, run_fuzz
from faults.kills import kill_writers
from faults.scratch import scratch
from faults.special_files import special_files

if TYPE_CHECKING:
    from pathlib import Path

    from faults.commands import CommandCase


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults")
    parser.add_argument("--seed", type=int, help="pins every case; else drawn anew")
    parser.add_argument("--cases", type=int, default=1000, help="damaged traces")
    parser.add_argument("--kills", type=int, default=100, help="writers killed with kill -9")
    parser.add_argument(
        "--commands", type=int, default=200, help="commands killed, every second one interrupted"
    )
    parser.add_argument("--forgeries", type=int, default=256, help="forged profiles, a process each")
    parser.add_argument("--only", choices=_PARTS, help="one part of it")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    started, num_wrong = time.monotonic(), 0
    with scratch() as folder:
        for name, part in _PARTS.items():
            if options.only in (None, name):
                own = folder / name
                own.mkdir()
                num_wrong += part(own, seed, options)
    print(f"\n{num_wrong or 'nothing'} wrong; {time.monotonic() - started:.0f} s")
    return 1 if num_wrong else 0


def _disks(folder: Path, seed: int, options: argparse.Namespace) -> int:
    print("\nFAULTS of a process that feeds real steps to the real writer")
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


def _kills(folder: Path, seed: int, options: argparse.Namespace) -> int:
    kills = list(kill_writers(folder, seed, options.kills))
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


def _full(folder: Path, seed: int, options: argparse.Namespace) -> int:
    try:
        cases = list(fill_disks(folder))
    except PermissionError as error:
        print(f"\nCOMMANDS on a full disk: not run: {error}")
        return 0
    failed = sum("ended with 2" in case.what for case in cases)
    print(f"\nCOMMANDS on a disk that is full, or fills up: {len(cases)}, of which {failed} failed for it")
    return _told(cases)


def _ended(folder: Path, seed: int, options: argparse.Namespace) -> int:
    cases = list(end_commands(folder, seed, options.commands))
    hit = Counter(case.what for case in cases if case.was_hit)
    shown = ", ".join(f"{count} {name}" for name, count in sorted(hit.items()))
    print(f"\nCOMMANDS that a signal ends at a random time: {len(cases)}; while they ran came {shown}")
    for command in dict.fromkeys(case.command for case in cases):
        print(f"  {command:<22} {sum(case.command == command for case in cases)}")
    return _told(cases)


def _told(cases: list[CommandCase]) -> int:
    wrong = [case for case in cases if case.problem]
    print(f"  {len(cases) - len(wrong)} left an output that is whole, or what was there")
    for case in wrong:
        print(f"  WRONG: {case.command}, {case.what}: {case.problem}")
    return len(wrong)


def _special(folder: Path, seed: int, options: argparse.Namespace) -> int:
    cases = list(special_files(folder))
    wrong = [case for case in cases if case.problem]
    num_files = len({case.file for case in cases})
    print(
        f"\nPIPES, FOLDERS, LOOPS, DEVICES, SOCKETS in the place of {num_files} files: "
        f"{len(cases) - len(wrong)} of {len(cases)} as they should be"
    )
    for case in wrong:
        print(f"  WRONG: {case.file} is a {case.kind}: {case.problem}")
    return len(wrong)


def _forged(folder: Path, seed: int, options: argparse.Namespace) -> int:
    cases = list(run_forged(seed, options.forgeries))
    wrong = [case for case in cases if case.problem]
    print(
        f"\nFORGED PROFILES, their checksums made anew: {len(cases)} fresh processes, exit code 2 expected\n"
    )
    print(forged_table(cases))
    for case in wrong:
        print(f"  WRONG: case {case.number}, {case.kind}, {case.directory}, {case.command}: {case.problem}")
    return len(wrong)


def _fuzz(folder: Path, seed: int, options: argparse.Namespace) -> int:
    cases = list(run_fuzz(seed, options.cases))
    wrong = [case for case in cases if case.problem]
    print(f"\nINTEGRITY, {len(cases)} traces with one damaged file each: what every reader made of them\n")
    print(fuzz_table(cases))
    for case in wrong:
        print(f"  WRONG: case {case.number}, {case.damage}: {case.problem}")
    return len(wrong)


_PARTS: Final = {
    "disks": _disks,
    "kills": _kills,
    "full": _full,
    "ended": _ended,
    "special": _special,
    "forged": _forged,
    "integrity": _fuzz,
}


if __name__ == "__main__":
    sys.exit(main())
