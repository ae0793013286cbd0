"""Sums that a replay cannot have written: no verdict rests on them, whatever their checksums say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import IntegrityError
from kvtrace.plain_text import plain
from kvtrace.query.execute import connect_with_views
from kvtrace.runs.attention_tables import ATTENTION, ATTENTION_LAYERS
from kvtrace.runs.columns import CANDIDATE
from kvtrace.runs.schema import CELLS, GROUPS, ORDINARY_CHANNELS, SWEEP

if TYPE_CHECKING:
    from kvtrace.query.connection import RunConnection
    from kvtrace.runs.open import Run
    from kvtrace.runs.table import Table

_OF_VALUES: Final = (CELLS, GROUPS, ORDINARY_CHANNELS, SWEEP)
_OF_ATTENTION: Final = (ATTENTION, ATTENTION_LAYERS)
_COUNTS: Final = (
    "num_values",
    "num_vectors",
    "num_nonfinite",
    "num_out_of_range",
    "num_clipped",
    "num_flushed",
)
_PARTS: Final = ("num_out_of_range", "num_clipped", "num_flushed")
"""Counts among `num_values`."""
_LARGEST_OCTAVE: Final = 62
"""Of a position of 64 bits; of a step -1 stands for none."""
_ROUNDING: Final = 1 + 1e-6
"""Sums of the same values in another order."""


def connect_to_judge(run: Run) -> RunConnection:
    """Return `connect_with_views(run)` of a run whose sums can be those of a replay.

    Raises IntegrityError: a sum of values is no number or below 0, sums of one row contradict each other, or
    an octave is one that no position has.
    """
    connection = connect_with_views(run)
    for table in filter(run.holds, (*_OF_VALUES, *_OF_ATTENTION)):
        named = "candidate" if CANDIDATE in table.columns else "NULL"
        sql = f'SELECT {named} FROM "{table.file_name}" WHERE {_broken(table)} LIMIT 1'  # noqa: S608 -- our own names
        found = connection.execute(sql).fetchone()
        if found is not None:
            whose = "" if found[0] is None else f" of {plain(str(found[0]), 80)}"
            raise IntegrityError(
                f"{run.path / table.file_name}: not the {table.name} table of a run: sums{whose} are no "
                "numbers or contradict each other. Run kvtrace replay again"
            )
    return connection


def _broken(table: Table) -> str:
    columns = [one.name for one in table.columns]
    floats = [one.name for one in table.columns if one.type_name == "float64"]
    wrong = [f"{name} NOT BETWEEN -1 AND {_LARGEST_OCTAVE}" for name in columns if name.endswith("_octave")]
    if table in _OF_VALUES:
        # Of attention they may be none: a cast that does not saturate leaves NaN, and o with it.
        wrong += [f"NOT isfinite({name})" for name in floats]
        wrong += [f"{name} < 0" for name in floats if name.startswith("sum_")]
        wrong += [f"{name} < 0" for name in _COUNTS if name in columns]
        wrong += [f"{name} > num_values" for name in _PARTS if name in columns]
        wrong += [
            "(num_clipped = 0 AND sum_sq_clip_error > 0)",
            f"sum_sq_clip_error > sum_sq_error * {_ROUNDING}",
        ]
    return " OR ".join(wrong)
