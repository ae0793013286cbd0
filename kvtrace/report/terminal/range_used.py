"""The ruler: how much of what the scales cover the largest values use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvtrace.figures import times
from kvtrace.report.answer.words import head_name
from kvtrace.report.wording import padded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.report.answer.model import RangeUsed

_NAME: Final = 17
_COLUMNS: Final = 26
LOW: Final = 0.125
HIGH: Final = 4.0
"""The ends of the ruler, always the same."""
_MOST: Final = 6


def range_used_lines(ruler: Sequence[RangeUsed]) -> Iterator[str]:
    """Yield a line for K and V of each set of scales, the answer's first; `|` is where clipping begins."""
    ends = f"⅛ ×{'1 ×':^{_COLUMNS - 6}}4 ×"
    yield f"  {'':<{_NAME}}   {ends}"
    for mark in ruler[: 2 * _MOST]:
        clips = mark.ratio > mark.clips_from
        name = padded(mark.candidate, _NAME)
        who = head_name((mark.layer, mark.kv_head, mark.tensor))
        yield f"  {name} {mark.tensor.upper()} {_line(mark, clips=clips)}  {times(mark.ratio)}, {who}"
    if len(ruler) > 2 * _MOST:
        yield f"  and {len(ruler) // 2 - _MOST} more: --format json has all"


def _line(mark: RangeUsed, *, clips: bool) -> str:
    cells = [" "] * _COLUMNS
    cells[_column(mark.clips_from)] = "|"
    cells[_column(mark.ratio)] = "✕" if clips else "✓"
    return "".join(cells)


def _column(ratio: float) -> int:
    share = math.log(min(max(ratio, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return round(share * (_COLUMNS - 1))
