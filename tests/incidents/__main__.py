"""`make incidents`: plant every fault in real traces and print what the diagnosis made of it.

Seeds differ from run to run unless pinned: `python -m incidents --seed 7`. Exit code 1 if any case is wrong.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from incidents import artifact_plants, combined_plants, healthy, value_plants
from incidents.judge import Outcome, run_incident
from incidents.planting import INCIDENTS

__all__ = ["artifact_plants", "combined_plants", "healthy", "main", "value_plants"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="incidents")
    parser.add_argument("--seed", type=int, help="pins every case; else drawn anew")
    parser.add_argument("--only", default="", help="cases whose name or cause contains this")
    options = parser.parse_args()
    base = secrets.randbelow(10**6) if options.seed is None else options.seed
    started = time.monotonic()
    chosen = [
        (number, one)
        for number, one in enumerate(INCIDENTS)
        if options.only in one.name or options.only in one.causes
    ]
    print(f"seed {base}; each case has seed {base} + its number\n")
    print(f"{'':3}{'planted':<44} {'base':<13} {'strength':<34} {'first':<24} rank")
    outcomes = []
    for number, one in chosen:
        outcome = run_incident(one, base + number)
        outcomes.append(outcome)
        print(_line(number, outcome), flush=True)
    _summary(outcomes)
    print(f"{time.monotonic() - started:.0f} s")
    return 0 if all(one.is_right for one in outcomes) else 1


def _line(number: int, outcome: Outcome) -> str:
    mark = " " if outcome.is_right else "!"
    causes = outcome.incident.causes
    first = " + ".join(outcome.found[: max(len(causes), 1)]) or "nothing above note"
    ranks = [str(outcome.found.index(c) + 1) if c in outcome.found else "–" for c in causes]
    return (
        f"{mark}{number:>2} {outcome.incident.name:<44} {outcome.base:<13} {outcome.strength:<34} "
        f"{first:<24} {' '.join(ranks)}"
    )


def _summary(outcomes: list[Outcome]) -> None:
    planted = [one for one in outcomes if one.incident.causes]
    sound = [one for one in outcomes if not one.incident.causes]
    print(
        f"\nplanted: {sum(one.is_right for one in planted)} of {len(planted)} with the cause first "
        f"({sum(len(one.incident.causes) > 1 for one in planted)} combinations); "
        f"healthy: {sum(one.is_right for one in sound)} of {len(sound)} without a finding above note"
    )


if __name__ == "__main__":
    sys.exit(main())
