"""At the rounding floor: what is lost is what FP8 loses with any scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.diagnosis.case import bound
from kvtrace.diagnosis.finding import Finding
from kvtrace.diagnosis.wording import skip_layers_flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.diagnosis.case import Case

_NEAR: Final = 1.5
"""Mean error in multiples of the floor."""

_EVIDENCE: Final = """
SELECT tensor, layer, kv_head,
  sqnr_db(sum(weight * sum_sq_signal), sum(weight * sum_sq_error)) AS sqnr_db,
  any_value(rounding_floor_db(format, engine)) AS floor_db
FROM cells
  JOIN candidates USING (candidate)
  JOIN sampling USING (source, sampling_id)
WHERE candidate = $candidate
GROUP BY tensor, layer, kv_head
ORDER BY sqnr_db, layer, kv_head, tensor
"""
_NAMED: Final = 3


def check(case: Case) -> Iterator[Finding]:
    """Yield a note per judged candidate whose heads lose on average what rounding alone loses."""
    for subject in case.subjects:
        if not subject.is_valid or not subject.floor:
            continue
        errors = [
            ((row["clip_error"] or 0.0) + (row["other_error"] or 0.0))
            for row in case.whole_heads(subject.name)
        ]
        if not errors or np.mean(errors) > _NEAR * subject.floor:
            continue
        sql = bound(_EVIDENCE, candidate=subject.name)
        rows = case.rows(sql, 10)
        layers = list(dict.fromkeys(row["layer"] for row in rows))[:_NAMED]
        yield Finding(
            id="rounding-floor",
            severity="note",
            confidence="certain",
            candidate=subject.name,
            message=(
                f"SQNR is {-10 * np.log10(np.mean(errors)):.1f} dB on average where rounding alone leaves "
                f"{-10 * np.log10(subject.floor):.1f}: no other scale will do better"
            ),
            action=f"If FP8 still costs too much quality, leave layers in BF16, these first: "
            f"{skip_layers_flag(layers)}",
            evidence=tuple(rows),
            sql=sql,
        )
