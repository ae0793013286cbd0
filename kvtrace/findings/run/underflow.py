"""Heads in which values are lost at the small end, and what is to blame: four rules share this.

Where a few outlier channels hold most of a head's Σ x², what is lost is asked of the ordinary ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvtrace.findings.run.case import bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.findings.finding import Head, Severity
    from kvtrace.findings.run.case import Case, Row, Subject

Blame = Literal["other-head", "scale", "values"]

_OVER_FLOOR: Final = 2.0
"""Error without clipping, in multiples of what rounding leaves (3 dB); real heads wander by 1.5."""
FLUSHED_LIMIT_WITH_ERROR: Final = 0.02
FLUSHED_LIMIT: Final = 0.15
"""Of a head's values: a few huge ones hide in Σ x² what becomes of all others. Absmax scales 256 times too
wide flush 2 % and cost nothing, 2,048 times 12 % and begin to cost."""
_WIDE: Final = 16.0
"""Covered over observed amax up to which a scale fits: within it, narrowing it would not help."""

_ERROR_HEAD: Final = 0.1
"""Of Σ x²: as much as ruins a head by clipping."""

_EVIDENCE: Final = """
WITH quantized AS (SELECT * FROM scaled_cells WHERE scale IS NOT NULL)
SELECT tensor, layer, kv_head, max_abs, covered_amax, flushed_frac,
  sqnr_db(w_sq_signal, w_sq_other_error) AS unclipped_sqnr_db,
  ordinary_sqnr_db, outlier_sqnr_db, rounding_floor_db AS floor_db, num_values
FROM value_sums(quantized)
  JOIN covered_heads USING (candidate, tensor, layer, kv_head)
  JOIN candidates USING (candidate)
  LEFT JOIN channel_classes USING (candidate, tensor, layer, kv_head)
WHERE candidate = $candidate
ORDER BY least(unclipped_sqnr_db, ordinary_sqnr_db), flushed_frac DESC, layer,
  kv_head, tensor
"""


@dataclass(frozen=True, slots=True)
class LosingHead:
    """A head that loses its small values."""

    head: Head
    row: Row
    blame: Blame
    widest: Row
    """The head with the largest values in the same layer and tensor."""
    is_hidden: bool
    """Whether outlier channels hide the loss: the head's own numbers do not show it."""

    @property
    def headroom(self) -> float:
        """Return covered over observed amax."""
        return float(self.row["covered_amax"] / self.row["max_abs"])


def losing_heads(case: Case, subject: Subject) -> list[LosingHead]:
    """Return the heads that lose their small values, the most flushed first."""
    if not subject.is_valid:
        return []
    rows = [row for row in case.whole_heads(subject.name) if row["max_abs"]]
    widest: dict[tuple[int, str], Row] = {}
    for row in rows:
        place = (row["layer"], row["tensor"])
        if place not in widest or row["max_abs"] > widest[place]["max_abs"]:
            widest[place] = row
    losing = [
        LosingHead(
            (row["layer"], row["kv_head"], row["tensor"]),
            row,
            _blame(row, widest[row["layer"], row["tensor"]], subject.floor),
            widest[row["layer"], row["tensor"]],
            is_hidden=not _shows_loss(row, subject.floor),
        )
        for row in rows
        if _loses(row, subject.floor)
    ]
    return sorted(losing, key=lambda one: (-one.row["flushed_frac"], one.head))


def losing_by(case: Case, subject: Subject, blame: Blame) -> list[LosingHead]:
    """Return those of one blame where some head's own numbers show its loss; else none.

    Where outlier channels hide the loss in all of them, `ordinary-channels` tells of it.
    """
    losing = [one for one in losing_heads(case, subject) if one.blame == blame]
    return losing if blame == "other-head" or not all(one.is_hidden for one in losing) else []


def severity_of(losing: Sequence[LosingHead]) -> Severity:
    """Return error where a head loses a share of its energy that ruins it; else warning."""
    return "error" if max(error_of(one.row) for one in losing) > _ERROR_HEAD else "warning"


def evidence_sql(subject: Subject) -> str:
    """Return the SQL that lists heads by what they lose at the small end."""
    return bound(_EVIDENCE, candidate=subject.name)


def error_of(row: Row) -> float:
    """Return a head's error without clipping, a share of Σ x²: that of its ordinary channels if it is larger.

    >>> error_of({"other_error": 0.001, "ordinary_error": 0.02}), error_of({"other_error": 0.001})
    (0.02, 0.001)
    """
    return max(row["other_error"] or 0.0, row.get("ordinary_error") or 0.0)


def is_over_floor(error: float, floor: float) -> bool:
    """Return whether more is lost than what rounding leaves in heads that lose nothing else."""
    return error > _OVER_FLOOR * floor


def _loses(row: Row, floor: float) -> bool:
    return _shows_loss(row, floor) or (
        # Theirs alone: an outlier that hardly varies can lie where its own rounding is large.
        _is_told_apart(row, floor) and is_over_floor(row["ordinary_error"], floor)
    )


def _shows_loss(row: Row, floor: float) -> bool:
    """Return whether the numbers over all of a head's channels show that it loses small values."""
    flushed = row["flushed_frac"] or 0.0
    over = is_over_floor(row["other_error"] or 0.0, floor)
    # Where the error of ordinary channels is known, their flushed values stand for nothing.
    return (over and flushed > FLUSHED_LIMIT_WITH_ERROR) or (
        flushed > FLUSHED_LIMIT and not _is_told_apart(row, floor)
    )


def _is_told_apart(row: Row, floor: float) -> bool:
    """Return whether ordinary channels have an error of their own, and a floor to hold it against."""
    return row["ordinary_error"] is not None and floor > 0


def _blame(row: Row, widest: Row, floor: float) -> Blame:
    if _fits(row, row["max_abs"], floor):
        return "values"
    is_shared = row["covered_amax"] == widest["covered_amax"]
    return "other-head" if is_shared and _fits(row, widest["max_abs"], floor) else "scale"


def _fits(row: Row, max_abs: float, floor: float) -> bool:
    """Return whether a head would lose as much under the narrowest scale that covers some magnitude."""
    covered: float = row["covered_amax"]
    return covered < _WIDE * max_abs and not _narrowing_mends(row, covered / max_abs, floor)


def _narrowing_mends(row: Row, by: float, floor: float) -> bool:
    """Return whether ordinary channels would be at the floor under a scale so many times narrower.

    What they lose beyond the floor lies below the smallest normal number, where steps grow with the scale.
    """
    if not _is_told_apart(row, floor):
        return False
    return not is_over_floor(floor + (row["ordinary_error"] - floor) / max(1.0, by) ** 2, floor)
