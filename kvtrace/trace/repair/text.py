"""`kvtrace inspect --repair` for people: what was kept and what was lost, on 80 columns where paths allow."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.trace.requests import COPY_OR_REPAIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvtrace.trace.repair.record import LostChunk, RepairRecord

_MAX_LISTED: Final = 8


def repair_text(repair: RepairRecord, original: Path, new: Path) -> str:
    """Return the report of one repair, without colour."""
    return "\n".join(_lines(repair, original, new)) + "\n"


def loss_lines(repair: RepairRecord) -> Iterator[str]:
    """Yield a line for each loss."""
    if repair.is_complete:
        yield "nothing was lost"
    for _, parts in groupby(repair.chunks, key=lambda lost: (lost.rank, lost.holds, lost.chunk)):
        yield _chunk_line(list(parts))
    for lines in repair.lines:
        count = "an unknown number of" if lines.num_lost is None else f"{lines.num_lost:,}"
        yield f"{lines.file}: {count} lines lost, {lines.num_kept:,} kept"
    if repair.requests_left_out:
        yield (
            f"{len(repair.requests_left_out):,} requests left out, since it cannot be told which of their "
            f"rows count: {_listed(repair.requests_left_out)}"
        )
    if repair.stores_left_out:
        yield f"what attention is replayed from is left out: {', '.join(repair.stores_left_out)}"
    for rank in repair.emptied_ranks:
        yield f"rank {rank}: all rows, since its commit.json is damaged"
    for rank in repair.lost_ranks:
        yield f"rank {rank}: all rows and what its KV heads are, since its rank.json is damaged"


def _lines(repair: RepairRecord, original: Path, new: Path) -> Iterator[str]:
    yield f"repaired  {plain(str(original), 200)} → {plain(str(new), 200)}"
    yield f"          from digest {repair.from_digest}"
    part = f", {repair.num_rows_in_part:,} without the tensors listed here" if repair.num_rows_in_part else ""
    yield f"kept      {repair.num_rows_kept:,} of {repair.num_rows:,} rows whole{part}"
    for number, line in enumerate(loss_lines(repair)):
        yield ("          " if number else "lost      ") + line
    problems = [chunk.problem for chunk in repair.chunks] + [lines.problem for lines in repair.lines]
    for number, problem in enumerate(problems[:_MAX_LISTED]):
        what = plain(problem.removesuffix(f". {COPY_OR_REPAIR}"), 300)
        yield ("          " if number else "found     ") + what
    if len(problems) > _MAX_LISTED:
        yield f"          and {len(problems) - _MAX_LISTED:,} more (--format json lists all)"
    for number, file in enumerate(repair.rewritten):
        yield ("          " if number else "rewritten ") + file
    yield "          The profile was left out; the next replay makes it again."


def _chunk_line(parts: list[LostChunk]) -> str:
    first = parts[0]
    of = "" if first.holds == "rank" else f", {first.holds}"
    rows = f"rank {first.rank}{of}, row chunk {first.chunk}: {first.num_rows:,} rows"
    if first.requests is None or first.layer is None:
        return f"{rows} in all layers; whose, cannot be told"
    where = ", ".join(f"layer {lost.layer} {lost.tensor}" for lost in parts[:_MAX_LISTED])
    more = f" and {len(parts) - _MAX_LISTED} more" if len(parts) > _MAX_LISTED else ""
    return f"{rows} of {len(first.requests):,} requests in {where}{more}"


def _listed(numbers: Iterable[int]) -> str:
    listed = [str(number) for number in numbers]
    return ", ".join(listed[:_MAX_LISTED]) + (" …" if len(listed) > _MAX_LISTED else "")
