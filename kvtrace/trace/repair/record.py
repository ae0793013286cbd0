"""`repair.json`: what a repaired trace was made from, and what was lost on the way."""

from __future__ import annotations

from typing import Final

from kvtrace.trace.format import StoreKind  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.trace.sealed import Count, Large, Record, Seconds, Size

REPAIR_SCHEMA_VERSION: Final = "1.1"
REPAIR_FILE: Final = "repair.json"


class LostChunk(Record):
    """Some rows of one rank whose values are gone, in all layers or in one tensor."""

    rank: Size
    holds: StoreKind = "rank"
    """Which of the rank's stores. Since 1.1."""
    chunk: Count
    """Row chunk in the damaged trace."""
    layer: Size | None = None
    """None: every layer, since the rows themselves cannot be told."""
    tensor: str | None = None
    num_rows: Count
    requests: tuple[Count, ...] | None = None
    """Whose rows they were; None where that is lost too."""
    problem: str


class LostLines(Record):
    """Lines of a JSON-lines file that are gone."""

    file: str
    num_kept: Count
    num_lost: Count | None
    """None: nobody knows, since the file's commit is gone."""
    problem: str


class RepairRecord(Record):
    """`repair.json`, and the JSON of `kvtrace inspect --repair`."""

    schema_version: str = REPAIR_SCHEMA_VERSION
    repaired_at: Seconds
    """Unix seconds."""
    kvtrace_version: str
    from_digest: str
    """`Trace.digest` of the damaged trace, over its record files as they were found."""
    num_rows: Large
    """Rows that the damaged trace's commits cover, over all ranks whose commit is sound."""
    num_rows_kept: Large
    """Of them, those kept in every layer."""
    num_rows_in_part: Large
    """Of them, those kept without the tensors that `chunks` lists."""
    chunks: tuple[LostChunk, ...] = ()
    lines: tuple[LostLines, ...] = ()
    requests_left_out: tuple[Count, ...] = ()
    """Requests whose end or sampling rules are lost: which of their rows count cannot be told."""
    lost_ranks: tuple[Size, ...] = ()
    """Ranks without a sound rank.json: not even their KV heads are known."""
    emptied_ranks: tuple[Size, ...] = ()
    """Ranks whose commit.json is lost: their heads are known, none of their rows is."""
    stores_left_out: tuple[str, ...] = ()
    """Stores of queries and of what goes with them, where one of them or a rank is not sound. Since 1.1."""
    rewritten: tuple[str, ...] = ()
    """Files that were damaged and hold nothing that other files do not tell: written anew."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing was lost."""
        return not (
            self.chunks
            or self.lines
            or self.requests_left_out
            or self.lost_ranks
            or self.emptied_ranks
            or self.stores_left_out
        )
