"""Layers × heads in characters: the share of a head's energy that clipping costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.report.bins import BINS, NOTHING, bin_of
from kvtrace.report.wording import WIDTH, cut, paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.findings.diagnose import HeadLoss
    from kvtrace.report.sections import Report

_MOST_ROWS: Final = 8
"""Rows for K, and for V: more heads are shown by the one of a few that loses most."""
_LABEL: Final = 9


def heat_map_lines(report: Report) -> Iterator[str]:
    """Yield layers × heads, a letter a head; nothing where no scales could be judged."""
    if not report.losses or report.losses_under is None:
        return
    name = cut(report.losses_under, 30)
    shown = {bin_of(one.clip_error).letter for one in report.losses}
    if shown == {NOTHING.letter}:
        yield from paragraph(f"Nothing is clipped under {name}, in any layer or head.")
        return
    yield from paragraph(f"energy lost to clipping under {name}; layers across, KV heads down")
    layers = sorted({one.layer for one in report.losses})
    per_line = WIDTH - _LABEL - 2
    for first in range(0, len(layers), per_line):
        part = layers[first : first + per_line]
        yield f"  {'layer':<{_LABEL}}{_ruler(part)}".rstrip()
        for tensor in ("k", "v"):
            yield from _rows(report.losses, tensor, part)
    yield from paragraph("   ".join(f"{one.letter} {one.meaning}" for one in (NOTHING, *BINS)))


def _ruler(layers: Sequence[int]) -> str:
    """Return layer numbers above their columns, every fifth."""
    line = ""
    for column, layer in enumerate(layers):
        if layer % 5 == 0 and column >= len(line):
            line = line.ljust(column) + str(layer)
            line += " "
    return line[: len(layers) + 2].rstrip()


def _rows(losses: Sequence[HeadLoss], tensor: str, layers: Sequence[int]) -> Iterator[str]:
    found = {(one.layer, one.kv_head): one.clip_error for one in losses if one.tensor == tensor}
    heads = sorted({head for _, head in found})
    size = -(-len(heads) // _MOST_ROWS)
    for first in range(0, len(heads), max(size, 1)):
        group = heads[first : first + size]
        label = f"{tensor.upper()} {group[0]}" + (f"–{group[-1]}" if len(group) > 1 else "")
        cells = "".join(
            _letter(max((found[layer, head] for head in group if (layer, head) in found), default=None))
            for layer in layers
        )
        yield f"  {label:<{_LABEL}}{cells}".rstrip()


def _letter(clip_error: float | None) -> str:
    return " " if clip_error is None else bin_of(clip_error).letter
