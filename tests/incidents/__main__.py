"""`make incidents`: plant every fault in real traces and print what the diagnosis made of it.

Seeds differ from run to run unless pinned: `python -m incidents --seed 7`. Exit code 1 if any case is wrong.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from typing import TYPE_CHECKING

from incidents import all_incidents
from incidents.answered import answered_cases
from incidents.answered_table import print_answered
from incidents.first_screen import print_first_screens
from incidents.judge import HOW_JUDGED, run_incident

if TYPE_CHECKING:
    from collections.abc import Sequence

    from incidents.judge import Outcome
    from incidents.planting import Incident


def main() -> int:
    parser = argparse.ArgumentParser(prog="incidents")
    parser.add_argument("--seed", type=int, help="pins every case; else drawn anew")
    parser.add_argument(
        "--hardest", action="store_true", help="faults at their faintest, healthy cases at their widest"
    )
    parser.add_argument("--only", default="", help="cases whose name or cause contains this")
    parser.add_argument(
        "--point", type=int, help="of the cases with right answers, those of this point alone"
    )
    parser.add_argument("--few", type=int, help="of the cases with right answers so many, by the seed")
    parser.add_argument("--draws", type=int, default=1, help="each case with a right answer so often")
    options = parser.parse_args()
    base = secrets.randbelow(10**6) if options.seed is None else options.seed
    started = time.monotonic()
    chosen = [
        (number, one)
        for number, one in enumerate(all_incidents())
        if options.point is None
        and (options.only in one.name or any(options.only in cause for cause in one.causes))
    ]
    strengths = "every strength the hardest to tell" if options.hardest else "which draws its strength too"
    print(f"seed {base}; each case has seed {base} + its number, {strengths}\n")
    print(f"{HOW_JUDGED}\n")
    print(f"{'':4}{'planted':<46} {'base':<13} {'strength':<34} {'judged':<8}first")
    outcomes = []
    for number, one in chosen:
        outcome = run_incident(one, base + number, hardest=options.hardest)
        outcomes.append(outcome)
        print(_line(number, outcome), flush=True)
    _summary(outcomes)
    fit = print_first_screens(outcomes)
    cases = [
        (number, one)
        for number, one in enumerate(answered_cases())
        if options.only in one.name and options.point in (None, one.point)
    ]
    if options.few is not None:
        kept = random.Random(base).sample(range(len(cases)), min(options.few, len(cases)))
        cases = [cases[place] for place in sorted(kept)]
    are_right = print_answered(cases, base, draws=options.draws, hardest=options.hardest)
    print(f"{time.monotonic() - started:.0f} s, {time.process_time():.0f} s of them on the processor")
    return 0 if are_right and fit and all(one.is_right for one in outcomes) else 1


def _line(number: int, outcome: Outcome) -> str:
    mark = " " if outcome.is_right else "!"
    incident = outcome.incident
    shown = outcome.found[: 1 if incident.control else len(incident.causes)]
    first = " + ".join(shown) or "nothing above a note"
    if incident.control is not None:
        first += f", noted: {' + '.join(incident.causes)}" if outcome.is_right else ", not noted as it should"
    elif outcome.is_right and not outcome.is_right_unaided:
        first += f"   (set aside: {', '.join(_set_aside(outcome))})"
    return (
        f"{mark}{number:>2} {incident.name:<46} {outcome.base:<13} {outcome.strength:<34} "
        f"{_how(incident):<8}{first}"
    )


def _how(incident: Incident) -> str:
    if incident.is_healthy:
        return "healthy"
    return "note" if incident.control is not None else "scales" if incident.seen_by == "scales" else "right"


def _set_aside(outcome: Outcome) -> list[str]:
    last = max(outcome.listed.index(cause) for cause in outcome.incident.causes)
    return [one for one in outcome.listed[:last] if one not in outcome.incident.causes]


def _summary(outcomes: Sequence[Outcome]) -> None:
    by_how = {
        how: [one for one in outcomes if _how(one.incident) == how]
        for how in ("right", "scales", "note", "healthy")
    }
    right = {how: f"{sum(one.is_right for one in cases)} of {len(cases)}" for how, cases in by_how.items()}
    planted = by_how["right"]
    aided = sum(one.is_right and not one.is_right_unaided for one in planted)
    several = sum(len(one.incident.causes) > 1 for one in planted)
    print(
        f"\nplanted: {right['right']} with the cause first ({several} are two faults at once; in {aided} a "
        f"consequence was set aside)\n"
        f"         {right['scales']} first in kvtrace scales; {right['note']} noted, and only where planted\n"
        f"healthy: {right['healthy']} without a finding above a note"
    )


if __name__ == "__main__":
    sys.exit(main())
