"""The integrity fuzz: random damage to a small real trace that has a profile, and what becomes of it."""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from support.run_cli import kvtrace

from faults.damage import Damage, apply_damage, copy_trace, draw_damage
from faults.integrity import judge_readers, what_it_gives
from faults.repaired import judge_repair, values_by_place
from faults.scratch import scratch
from faults.small_trace import write_small_trace
from kvtrace.profile.ready import ready_profile
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCALES = Path(__file__).parents[2] / "samples/scales/chat-per-head"
WAYS = ("read", "replay", "inspect --verify", "repair")
CASE_SECONDS = 60
REPLAYED = 25
"""One case in so many goes through the whole of `kvtrace replay`, and its tables are compared."""


@dataclass(frozen=True, slots=True)
class Case:
    """One damage and what everyone made of it. problem: empty where it is as it should be."""

    number: int
    damage: Damage
    found: dict[str, str]
    problem: str = ""


class Fuzz:
    """A base trace with a valid profile, and copies of it to damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = write_small_trace(folder / "base" / "small.kvtrace")
        trace = open_trace(self.base)
        for directory, cells in (
            (PROFILE_DIRECTORY, find_cells(trace)),
            (GROUPS_DIRECTORY, find_group_cells(trace)),
        ):
            with ready_profile(trace, cells, torch.device("cpu"), directory=directory):
                pass
        self.original = open_trace(self.base)
        self.values = values_by_place(self.original)
        self.gives = what_it_gives(self.base)
        assert self.gives.profile

    @contextmanager
    def damaged(self, damage: Damage) -> Iterator[Path]:
        """Yield a damaged copy, in a folder that is removed afterwards."""
        trace = self.folder / "case" / "small.kvtrace"
        try:
            copy_trace(self.base, trace)
            apply_damage(trace, damage)
            with time_limit(CASE_SECONDS):
                yield trace
        finally:
            shutil.rmtree(trace.parent, ignore_errors=True)

    def read(self, damage: Damage) -> dict[str, str]:
        """Let every reader at a damaged copy, and return what each found."""
        with self.damaged(damage) as trace:
            return judge_readers(trace, damage, self.gives)

    def run(self, damage: Damage, *, whole_replay: bool = False) -> dict[str, str]:
        """Let every reader and the repair at a damaged copy, and return what each found."""
        with self.damaged(damage) as trace:
            repair = judge_repair(trace, damage, self.original, self.values)
            found = judge_readers(trace, damage, self.gives)
            if whole_replay:
                self._replay(trace, damage)
            return found | {"repair": repair}

    def _replay(self, trace: Path, damage: Damage) -> None:
        """Replay a damaged trace, which is refused or gives the base's tables, and its repair."""
        scales = ("--scales", str(SCALES))
        found = _replayed(trace, *scales)
        assert found in (None, self._base_tables), f"{damage}: replay gives other tables"
        repaired = trace.with_name("repaired.kvtrace")
        if repaired.exists():
            assert _replayed(repaired, "--verify") is not None, (
                f"{damage}: the repaired trace is not replayed"
            )

    @cached_property
    def _base_tables(self) -> dict[str, bytes]:
        tables = _replayed(self.base, "--scales", str(SCALES))
        assert tables is not None
        return tables


def _replayed(trace: Path, *options: str) -> dict[str, bytes] | None:
    """Return the tables of a replay; None where it was refused. Raises AssertionError on a traceback."""
    run = trace.parent / "run"
    result = kvtrace("replay", trace, "-o", run, "--force", *options)
    assert result.returncode in (0, 2), result.stderr
    if result.returncode:
        return None
    return {table.name: table.read_bytes() for table in sorted(run.glob("*.parquet"))}


def run_fuzz(seed: int, num_cases: int) -> Iterator[Case]:
    """Yield the cases. Case n depends on the seed and n alone."""
    with scratch() as folder:
        fuzz = Fuzz(folder)
        for number in range(num_cases):
            damage = draw_damage(random.Random(f"{seed}:{number}"), fuzz.base)
            try:
                found = fuzz.run(damage, whole_replay=number % REPLAYED == 0)
                yield Case(number, damage, found)
            except Exception as error:  # noqa: BLE001 -- whatever a user would see as a traceback is a finding
                yield Case(number, damage, {}, f"{type(error).__name__}: {error}")


def fuzz_table(cases: list[Case]) -> str:
    """Return a line for each kind of file: how many cases, and how they ended."""
    rows = [_row("damaged", "cases", WAYS)]
    for kind in sorted({case.damage.file_kind for case in cases}):
        mine = [case for case in cases if case.damage.file_kind == kind]
        rows.append(_row(kind, str(len(mine)), [_counts(mine, way) for way in WAYS]))
    return "\n".join(rows)


def _row(kind: str, num_cases: str, cells: Sequence[str]) -> str:
    return f"{kind:<21}{num_cases:>5}  " + "".join(f"{cell:<26}" for cell in cells).rstrip()


def _counts(cases: list[Case], way: str) -> str:
    counts = Counter(case.found[way] for case in cases if not case.problem)
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError where the block hangs."""

    def give_up(_signal: int, _frame: object) -> None:
        raise TimeoutError(f"did not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
