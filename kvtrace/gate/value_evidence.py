"""Value-level ratios of a candidate with intervals over request groups, and against another's, paired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.gate.decide import RATIOS
from kvtrace.stats.jackknife import jackknife_ratios

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.query import RunConnection

    GroupSums = dict[str, dict[str, NDArray[np.float64]]]
    """Tensor → column → [request group], over all heads."""

_SUMS: Final = """
SELECT tensor, request_group, w_values, w_clipped, w_sq_signal, w_sq_error, w_sq_clip_error
FROM group_sums(chosen_groups)
WHERE candidate = $candidate
ORDER BY tensor, request_group
"""
_COLUMNS: Final = ("w_values", "w_clipped", "w_sq_signal", "w_sq_error", "w_sq_clip_error")


def group_sums(connection: RunConnection, candidate: str) -> GroupSums:
    """Return the sums of one valid candidate; empty where the run has no request groups."""
    rows = connection.execute(_SUMS, {"candidate": candidate}).fetchall()
    num_groups = max((row[1] for row in rows), default=-1) + 1
    found: GroupSums = {}
    for tensor, group, *sums in rows:
        columns = found.setdefault(tensor, {name: np.zeros(num_groups) for name in _COLUMNS})
        for name, value in zip(_COLUMNS, sums, strict=True):
            columns[name][group] = value
    return found


def ratio_ends(sums: dict[str, NDArray[np.float64]] | None, confidence: float) -> dict[str, float | None]:
    """Return `clipped_low` and so on, SQNR in dB; None where the requests are too few to tell."""
    ends: dict[str, float | None] = {}
    for limit in ("clipped_frac", "clip_error_frac", "sqnr_db"):
        name, _, unit = limit.rpartition("_")
        above, below = RATIOS[limit]
        low_high = (None, None) if sums is None else _ends(sums[above], sums[below], confidence)
        if unit == "db":
            ends |= zip((f"{name}_low_db", f"{name}_high_db"), map(_decibel, low_high), strict=True)
        else:
            ends |= zip((f"{name}_low", f"{name}_high"), low_high, strict=True)
    return ends


def sqnr_change(
    sums: dict[str, NDArray[np.float64]] | None,
    rival: dict[str, NDArray[np.float64]] | None,
    confidence: float,
) -> dict[str, float | None]:
    """Return how many dB better than the rival, with its interval: the ratio of their errors, group by group.

    Both must be of the same values. None where one has no error, or no groups.
    """
    change: float | None = None
    low = high = None
    if sums is not None and rival is not None:
        errors = rival["w_sq_error"], sums["w_sq_error"]
        if errors[0].shape == errors[1].shape and all(error.sum() > 0 for error in errors):
            change = _decibel(float(errors[0].sum() / errors[1].sum()))
            low, high = (_decibel(end) for end in _ends(*errors, confidence))
    return {"sqnr_change_db": change, "sqnr_change_low_db": low, "sqnr_change_high_db": high}


def _ends(above: NDArray[Any], below: NDArray[Any], confidence: float) -> tuple[float | None, float | None]:
    found = jackknife_ratios(above, below, confidence=confidence)
    return (None, None) if found.too_few_groups else (float(found.low), float(found.high))


def _decibel(ratio: float | None) -> float | None:
    return None if ratio is None else float(10 * np.log10(ratio))
