"""Tango's score interval of a paired difference: a second opinion on single, independent pairs.

Tango (1998), "Equivalence test and confidence interval for the difference in proportions for the
paired-sample design", Statistics in Medicine 17.
"""

from __future__ import annotations

from math import sqrt

from scipy.optimize import brentq
from scipy.special import ndtri


def tango(lost: int, won: int, pairs: int, confidence: float = 0.95) -> tuple[float, float]:
    z = float(ndtri((1 + confidence) / 2))

    def score(delta: float) -> float:
        a = 2 * pairs
        b = -lost - won + (2 * pairs - lost + won) * delta
        c = -won * delta * (1 - delta)
        q = (sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        variance = pairs * (2 * q + delta * (1 - delta))
        return (lost - won - pairs * delta) / sqrt(variance) if variance > 1e-12 else 0.0

    middle = (lost - won) / pairs
    low = brentq(lambda x: score(x) - z, -1 + 1e-9, middle - 1e-9)
    high = brentq(lambda x: score(x) + z, middle + 1e-9, 1 - 1e-9)
    return float(low), float(high)
