"""At the rounding floor: what is lost is what FP8 loses with any scale.

That is said of the heads of which it is true. A head that clips loses more than rounding takes, and a wider
scale would help it, however little it weighs in the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import HEADS, SOUND, RunExample, RunRule
from kvtrace.findings.run.underflow import error_of
from kvtrace.findings.wording import some_heads, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case, Row

_NEAR: Final = 1.5
"""Mean error in multiples of the floor."""
_NEAR_OF_HEAD: Final = 2.0
"""The same of one head: without clipping real heads wander by 1.5."""
_CLIPPED: Final = 0.25
"""Clip error over all other error, from which a head is not at its floor: 1 dB could be won."""

_EVIDENCE: Final = """
SELECT tensor, layer, kv_head, sqnr_db, rounding_floor_db AS floor_db,
  clip_error_frac
FROM value_sums(chosen_cells) JOIN candidates USING (candidate)
WHERE candidate = $candidate
ORDER BY sqnr_db, layer, kv_head, tensor
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield a note per judged candidate whose heads lose on average what rounding alone loses."""
    for subject in case.subjects:
        if not subject.is_valid or not subject.floor:
            continue
        heads = [
            row for row in case.whole_heads(subject.name) if _error(row)
        ]  # one that loses nothing has no SQNR
        if not heads or np.mean([_error(row) for row in heads]) > _NEAR * subject.floor:
            continue
        worst_first = sorted(heads, key=_error, reverse=True)
        at_floor = [row for row in worst_first if _is_at_floor(row, subject.floor)]
        above = [row for row in worst_first if not _is_at_floor(row, subject.floor)]
        if not at_floor:
            continue
        sql = bound(_EVIDENCE, candidate=subject.name)
        where, rest = "", ""
        if above:
            where = f" of {len(at_floor)} of {len(heads)} heads (K and V counted apart)"
            others = [_named(row) for row in above]
            rest = f" there. Not so in {some_heads(others)} ({tensors_of(others)}): more is lost in them"
        yield Finding(
            id="rounding-floor",
            severity="note",
            candidate=subject.name,
            message=(
                f"SQNR{where} is {_db(np.mean([_error(row) for row in at_floor]))} dB on average where "
                f"rounding alone leaves {_db(subject.floor)}: no other scale will do much better{rest}"
            ),
            action="If FP8 still costs too much quality, compare formats (--cache-dtype), or keep native the "
            "layers that harm most (kvtrace plan)",
            evidence=tuple(case.rows(sql, 10)),
            sql=sql,
            heads=tuple(_named(row) for row in at_floor) if above else (),
        )


def _error(row: Row) -> float:
    """Return a head's error, a share of Σ x²; that of its ordinary channels where it is larger."""
    return (row["clip_error"] or 0.0) + error_of(row)


def _is_at_floor(row: Row, floor: float) -> bool:
    is_clipped = (row["clip_error"] or 0.0) > _CLIPPED * (row["other_error"] or 0.0)
    return not is_clipped and _error(row) <= _NEAR_OF_HEAD * floor


def _named(row: Row) -> tuple[int, int, str]:
    return row["layer"], row["kv_head"], row["tensor"]


def _db(error: float | np.floating[Any]) -> str:
    return f"{-10 * np.log10(error):.1f}"


RULE: Final = RunRule(
    id="rounding-floor",
    role="note",
    tier=Tier.rounding_floor,
    mended_by="leave layers",
    check=check,
    invalid=(RunExample(),),
    valid=(RunExample(sums={head: {"sum_sq_error": 4 * SOUND["sum_sq_error"]} for head in HEADS}),),
)
