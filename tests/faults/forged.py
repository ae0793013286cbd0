"""Forged profiles before real commands: each is refused in one line, in a process that ends by itself."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from faults.damage import copy_trace
from faults.forgeries import KINDS, forge
from faults.fuzz import Fuzz
from faults.scratch import scratch
from kvtrace.errors import IntegrityError
from kvtrace.profile.store import find_profile, verify_profiles
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvtrace.trace.reader import Trace

COMMANDS: Final = {
    PROFILE_DIRECTORY: (("report",), ("replay", "-o", "run"), ("inspect", "--verify")),
    GROUPS_DIRECTORY: (("report",), ("replay", "--intervals", "-o", "run"), ("inspect", "--verify")),
}
_UNUSABLE: Final = 2
_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class ForgedCase:
    """One forgery and how one command ended. problem: empty where it is as it should be."""

    number: int
    kind: str
    directory: str
    command: str
    problem: str


def run_forged(seed: int, num_cases: int) -> Iterator[ForgedCase]:
    """Yield the cases, a fresh process each. Case n depends on the seed and n alone."""
    with scratch() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        base = Fuzz(folder).base
        yield from pool.map(lambda number: judge_process(base, folder, seed, number), range(num_cases))


def judge_process(base: Path, folder: Path, seed: int, number: int) -> ForgedCase:
    """Forge a copy of the base and let a command at it, in a process of its own."""
    kind = KINDS[number % len(KINDS)]
    drawn = random.Random(f"{seed}:{number}")
    directory = drawn.choice(sorted(COMMANDS))
    command = drawn.choice(COMMANDS[directory])
    own = folder / f"forged-{number}"
    trace = own / "small.kvtrace"
    try:
        copy_trace(base, trace)
        file = forge(drawn, trace / directory, kind)
        arguments = (command[0], str(trace), *command[1:])
        done = subprocess.run(
            [sys.executable, "-m", "kvtrace", *arguments],
            cwd=own, capture_output=True, text=True, check=False, timeout=_SECONDS,
        )  # fmt: skip
        problem = _problem(trace, f"{directory}/{file}", done.returncode, done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        problem = f"did not end within {_SECONDS} s"
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return ForgedCase(number, kind, directory, " ".join(command), problem)


def _problem(trace: Path, file: str, code: int, out: str, err: str) -> str:
    # What a command says of the trace before it opens the profile is no part of its error.
    lines = [line for line in err.splitlines() if not line.startswith(f"{trace}: ")]
    if code != _UNUSABLE:
        return f"ended with {code}: {err[-300:]}"
    if out:
        return f"printed {out[:100]!r}"
    if len(lines) != 1:
        return f"{len(lines)} lines of error: {err[-300:]}"
    return problem_of_text(lines[0].removeprefix("kvtrace: "), trace, file)


def problem_of_text(text: str, trace: Path, file: str) -> str:
    """Return what the text of an error lacks."""
    if not text.startswith(f"{trace / file}: is ") or "\n" in text:
        return f"does not begin with {file}: {text}"
    if not text.endswith(f". Delete {trace / file.partition('/')[0]}: the profile is made again"):
        return f"does not say what to do: {text}"
    return ""


def judge_reading(opened: Trace, directory: str, file: str) -> None:
    """Let every reader at a forged profile. Raises AssertionError where one takes it, or is unclear."""

    def replayed() -> None:
        profile = find_profile(opened, directory)
        assert profile is not None, "the profile is passed over"
        list(profile.tensors())

    texts = [_refused(reader) for reader in (replayed, lambda: verify_profiles(opened))]
    assert texts[0] == texts[1], "a replay and --verify say different things"
    assert not (problem := problem_of_text(texts[0], opened.path, f"{directory}/{file}")), problem


def _refused(reader: Callable[[], None]) -> str:
    try:
        reader()
    except IntegrityError as error:
        return str(error)
    raise AssertionError("a forged profile is read")


def forged_table(cases: list[ForgedCase]) -> str:
    """Return a line for each kind: how many processes, and how many of them ended as they should."""
    rows = [f"{'forged':<32}{'processes':>9}{'refused in one line':>21}"]
    for kind in KINDS:
        mine = [case for case in cases if case.kind == kind]
        rows.append(f"{kind:<32}{len(mine):>9}{sum(not case.problem for case in mine):>21}")
    return "\n".join(rows)
