"""Whether the engine that captured a trace still runs: its writers hold the locks of their stores."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kvtrace.trace.format import COMMIT_FILE

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def is_being_written(stores: Iterable[Path]) -> bool:
    """Return whether a writer of one of the stores lives.

    To be asked before commits are read: what a writer adds then is pending, and not lost. False where that
    cannot be told: another host's, a file system without locks, an older plug-in.
    """
    return any(map(_is_locked, stores))


def last_commit_at(stores: Iterable[Path]) -> float | None:
    """Return the Unix time of the last commit in any store, by its file's own time; None: not known."""
    try:
        return max((store / COMMIT_FILE).stat().st_mtime for store in stores)
    except (OSError, ValueError):
        return None


def why_empty(*, is_running: bool) -> str:
    """Return what to make of a trace without a committed row, and what to do."""
    if is_running:
        return (
            "Its engine still runs, and commits every 30 seconds unless told otherwise: ask again once "
            "requests of a sampled workload reached it. kvtrace inspect shows what it serves"
        )
    return (
        "Did requests of a sampled workload reach the engine, and did it run longer than the flush interval "
        "or shut down in order? kvtrace inspect shows what it served"
    )


def _is_locked(store: Path) -> bool:
    if fcntl is None:
        return False
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(store, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # readers do not shut each other out
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False
