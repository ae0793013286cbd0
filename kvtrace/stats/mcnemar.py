"""McNemar's exact test: do two variants differ at all, on pairs that are independent of each other?"""

from __future__ import annotations

from scipy import special


def mcnemar_p(losses: int, wins: int) -> float:
    """Return the two-sided p of H0 "a differing pair is as likely lost as won".

    Source: McNemar (1947), Psychometrika 12, in its exact binomial form. A large p does not say that two
    variants are the same.

    >>> mcnemar_p(0, 5), mcnemar_p(1, 7), mcnemar_p(0, 0)
    (0.0625, 0.0703125, 1.0)
    """
    differing = losses + wins
    return min(1.0, 2 * float(special.bdtr(min(losses, wins), differing, 0.5))) if differing else 1.0
