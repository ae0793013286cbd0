"""`make same-as BASE=<commit>`: run a commit's command line and the working tree's, and compare all they say.

Exit code 1: something differs that `differences.toml` does not list. Both run on private copies of the same
inputs, made by the commit's code; only the command line is used, so anything inside may move.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from same_as.allowed import AllowedError, read_allowed
from same_as.cases import all_cases
from same_as.commands import matches
from same_as.compare import Compared, compare
from same_as.inputs import make_inputs
from same_as.pairs import paired_outputs
from same_as.side import ROOT, Side, check_out, commit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from same_as.allowed import Allowed

_ALLOWED = Path(__file__).with_name("differences.toml")


def main() -> int:
    """Compare, print a table, return the exit code."""
    parser = argparse.ArgumentParser(prog="same_as")
    parser.add_argument("base", help="the commit to compare the working tree with")
    parser.add_argument(
        "--only",
        default="",
        help="outputs whose name holds one of these, such as sample/query,*.html",
    )
    parser.add_argument("--differences", type=Path, default=_ALLOWED, help="what may differ")
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="compare this tree instead of the working tree"
    )
    parser.add_argument("--keep", type=Path, help="leave what both sides wrote in this new folder")
    options = parser.parse_args()
    only = [one for one in options.only.split(",") if one]
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    try:
        allowed = read_allowed(options.differences)
    except AllowedError as error:
        raise SystemExit(f"same_as: {error}") from error
    commit = commit_of(options.base)
    with tempfile.TemporaryDirectory(prefix="same-as-") as scratch:
        work = (options.keep or Path(scratch)).absolute()
        check_out(commit, Path(scratch) / "source")
        # Names of one length: no line may wrap elsewhere because of a path in it.
        sides = (
            Side("base", Path(scratch) / "source", work / "base"),
            Side("tree", options.tree.absolute(), work / "tree"),
        )
        compared = []
        try:
            for one in _all_compared(sides, work / "inputs", only, allowed, keep=bool(options.keep)):
                print(_line(one), flush=True)
                compared.append(one)
        finally:
            for side in sides:
                side.stop()
    if not compared:
        raise SystemExit(f"same_as: --only {options.only}: no output is called so")
    took = f"{time.monotonic() - started:.0f} s ({sum(side.cpu_s for side in sides):.0f} s of CPU)"
    print(f"\n{_counts(compared)}, against {options.base} ({commit[:9]}) in {took}")
    if not only:
        for one in allowed:
            if not one.count and not one.is_volatile:  # two runs may fall into one minute
                print(f"not needed, so take it out of {options.differences.name}: {one.output}: {one.why}")
    return int(any(one.verdict == "DIFFERENT" for one in compared))


def _all_compared(
    sides: tuple[Side, Side], inputs: Path, only: Sequence[str], allowed: Sequence[Allowed], *, keep: bool
) -> Iterator[Compared]:
    for side in sides:
        side.work.mkdir(parents=True)
        side.check_is_used()
    faults, formats = make_inputs(sides[0], inputs, only)
    every = all_cases(_queries(sides[0]), faults, formats)
    cases = [case for one in every if (case := one.only(only)).commands]
    for before, after in paired_outputs(sides, cases, inputs, keep=keep):
        name = (before or after).name
        if matches(name, only):
            if before and after and before.same_bytes(after):
                yield Compared(name, "equal")
            else:
                yield compare(name, *(one.parts() if one else {} for one in (before, after)), allowed)


def _line(one: Compared) -> str:
    verdict = f"{one.num_intended} intended" if one.verdict == "intended" else one.verdict
    return "\n".join([f"{verdict:<12}{one.output}", *(f"    {line}" for line in one.shown)])


def _counts(compared: Sequence[Compared]) -> str:
    by = Counter(one.verdict for one in compared)
    return (
        f"{len(compared):,} outputs: {by['equal']:,} equal, {by['intended']:,} with intended differences, "
        f"{by['DIFFERENT']:,} DIFFERENT"
    )


def _queries(base: Side) -> dict[str, tuple[str, ...]]:
    """Return the names of the base's queries and their parameters, as `kvtrace query --list` prints them."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for line in base.python("-m", "kvtrace", "query", "--list").splitlines():
        if not line.startswith(" "):
            name = line.strip()
            found[name] = ()
        elif line.strip().startswith("--param"):
            found[name] = tuple(
                one.strip() for one in line.strip().removeprefix("--param").split(",") if one.strip()
            )
    return found


if __name__ == "__main__":
    sys.exit(main())
