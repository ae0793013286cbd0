"""`kvtrace ls` for people: the traces of a folder, a line each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kvtrace.figures import count
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.trace.folder import TraceEntry

_STILL_RUNNING_S: Final = 120.0
"""An engine commits every 30 seconds unless it is told otherwise, if there are rows."""
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def folder_text(entries: Sequence[TraceEntry], now: float) -> str:
    """Return a line for each trace, and a second one where there is more to say.

    now: Unix time in seconds.
    """
    lines = [f"{'captured (UTC)':<17}{'rows':>10}  {'KV cache':<9} trace"]
    for entry in entries:
        name = plain(entry.path.name, 120)
        if entry.record is None:
            lines.append(f"{'–':<17}{'–':>10}  {'–':<9} {name}")
            lines.append(f"    cannot be read: {plain(entry.problem or '', 300)}")
            continue
        captured = datetime.fromtimestamp(entry.record.created_at, UTC).strftime("%Y-%m-%d %H:%M")
        rows = "–" if entry.num_rows is None else f"{entry.num_rows:,}"
        dtype = plain(entry.record.engine.kv_cache_dtype, 9)
        lines.append(f"{captured:<17}{rows:>10}  {dtype:<9} {name}")
        lines.append(f"    {plain(entry.record.model.name, 60)}, {state_of(entry, now)}")
    return "\n".join(lines) + "\n"


def state_of(entry: TraceEntry, now: float) -> str:
    """Return whether an engine has ended the trace, in words. now: Unix time in seconds."""
    if entry.committed_at is None:
        return entry.problem or "not known"
    if entry.closed:
        return "ended in order"
    since = max(0.0, now - entry.committed_at)
    ago = f"last commit {age(since)} ago"
    if since < _STILL_RUNNING_S:
        return f"perhaps still running, {ago}"
    return f"not ended in order, {ago}"


def age(seconds: float) -> str:
    """Return a time span in its largest whole unit.

    >>> age(59.9), age(7300)
    ('59 seconds', '2 hours')
    """
    size, name = next(((size, name) for size, name in _UNITS if seconds >= size), _UNITS[-1])
    return count(int(seconds // size), name)
