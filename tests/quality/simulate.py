"""`make quality-simulations`: how often the paired interval covers, and how often a loss is overlooked.

`python tests/quality/simulate.py [--draws N] [--seed N]`. Pass and fail of single pairs, drawn; no expected
value is written down here: tests/quality/test_simulations.py has the bounds, on few draws.
"""

from __future__ import annotations

import argparse
import sys
from functools import cache
from math import sqrt
from pathlib import Path
from typing import Final

import numpy as np
from scipy.special import ndtri

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.tango import tango

from kvtrace.stats.paired import PairedDifference, paired_difference

ROWS: Final = (
    (100, 0.02, 0.01), (300, 0.02, 0.02), (300, 0.03, 0.01), (1000, 0.02, 0.01), (1000, 0.005, 0.005),
    (300, 0.10, 0.05),
)  # fmt: skip
"""Pairs, chance of a lost and of a won answer."""
LOOKS: Final = (1, 5, 20)
PAIRS: Final = 500
MARGIN: Final = 0.02
LOST, WON = 0.05, 0.03
"""A true loss of just the margin: whoever calls it within errs."""


def coverage(row: tuple[int, float, float], draws: int, seed: int) -> tuple[float, float, float]:
    """Return how often 90 % intervals hold the true loss, kvtrace's and Tango's, and the ratio of widths."""
    pairs, lost, won = row
    counts = np.random.default_rng(seed).multinomial(pairs, (lost, won, 1 - lost - won), draws)
    truth, hits, rival_hits, width, rival_width = lost - won, 0, 0, 0.0, 0.0
    for one in counts.tolist():
        found, rival = interval(one[0], one[1], pairs, 0.9), tango_once(one[0], one[1], pairs)
        hits += found.low <= truth <= found.high
        rival_hits += rival[0] <= truth <= rival[1]
        width += found.high - found.low
        rival_width += rival[1] - rival[0]
    return hits / draws, rival_hits / draws, width / rival_width


def false_within(looks: int, draws: int, seed: int, *, split: bool, pairs: int = PAIRS) -> float:
    """Return the share of growing samples that some look calls within, at a loss of just the margin."""
    confidence = 0.9 if not split else 1 - 0.1 / looks
    random = np.random.default_rng(seed)
    sizes = [pairs * (k + 1) // looks for k in range(looks)]
    steps = np.diff([0, *sizes])
    called = 0
    for _ in range(draws):
        grown = np.cumsum(
            [random.multinomial(step, (LOST, WON, 1 - LOST - WON))[:2] for step in steps], axis=0
        )
        called += any(
            is_within(int(lost), int(won), size, confidence)
            for size, (lost, won) in zip(sizes, grown, strict=True)
        )
    return called / draws


def is_within(lost: int, won: int, pairs: int, confidence: float) -> bool:
    """Return what `kvtrace quality compare` decides of the loss alone."""
    if far_from_within(lost, won, pairs, confidence):
        return False
    found = interval(lost, won, pairs, confidence)
    return found.high + found.high_error <= MARGIN


def far_from_within(lost: int, won: int, pairs: int, confidence: float) -> bool:
    """Return whether even 0.7 of a normal interval reaches beyond the margin; it saves most of the time."""
    loss = (lost - won) / pairs
    error = sqrt(max((lost + won) / pairs - loss * loss, 0.0) / pairs)
    return loss + 0.7 * float(ndtri((1 + confidence) / 2)) * error > MARGIN


@cache
def interval(lost: int, won: int, pairs: int, confidence: float) -> PairedDifference:
    """Return kvtrace's interval of single pairs."""
    after = np.r_[np.ones(lost), np.zeros(pairs - lost)]
    before = np.r_[np.zeros(lost), np.ones(won), np.zeros(pairs - lost - won)]
    return paired_difference(after, before, np.ones(pairs), confidence=confidence)


@cache
def tango_once(lost: int, won: int, pairs: int) -> tuple[float, float]:
    """Return Tango's 90 % interval."""
    return tango(lost, won, pairs, 0.9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="simulate")
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=23)
    options = parser.parse_args()
    error = sqrt(0.9 * 0.1 / options.draws)
    print(f"90 % intervals, {options.draws:,} draws a row, seed {options.seed}: standard error {error:.3f}")
    print("pairs  P(lost)  P(won)  kvtrace  Tango  width kvtrace/Tango")
    for row in ROWS:
        own, rival, ratio = coverage(row, options.draws, options.seed)
        print(f"{row[0]:5}  {row[1]:7}  {row[2]:6}  {own:7.3f}  {rival:5.3f}  {ratio:19.2f}", flush=True)
    print(
        f"\nfalse 'within' at a loss of the margin, {PAIRS} pairs, {LOST + WON:.0%} discordant, nominal 5 %"
    )
    print("looks  unsplit  split")
    for looks in LOOKS:
        shares = [false_within(looks, options.draws, options.seed, split=split) for split in (False, True)]
        print(f"{looks:5}  {shares[0]:7.3f}  {shares[1]:5.3f}", flush=True)


if __name__ == "__main__":
    main()
