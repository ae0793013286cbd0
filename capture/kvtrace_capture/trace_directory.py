"""One directory for each engine start, agreed on by the processes of that start."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from typing import TYPE_CHECKING, Final

from kvtrace.trace.format import TRACE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.05


def start_id(engine_id: str, instance_id: str, data_parallel_rank: int) -> str:
    """Return 12 hex digits that all processes of one replica's start share, and no other start.

    engine_id may be pinned by the operator; instance_id is drawn by vLLM at each start (`VllmConfig`).
    """
    name = f"{engine_id}\0{instance_id}\0{data_parallel_rank}"
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def make_trace_directory(base: Path, start: str) -> Path:
    """Make and return `base/<UTC time>-<start>.kvtrace`, for its owner alone.

    Raises OSError: `base` cannot be made or written. Nothing that exists is ever reused.
    """
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = base / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{start}{TRACE_SUFFIX}"
    path.mkdir(mode=0o700)
    return path


def find_trace_directory(base: Path, start: str, patience_s: float = _PATIENCE_S) -> Path:
    """Wait for the directory that rank 0 of this start makes, and return it.

    Links, and what belongs to another user than this one, are passed over: others may write to `base` too.
    Raises TimeoutError: it did not appear; the ranks of one engine need one file system.
    """
    deadline = time.monotonic() + patience_s
    while True:
        found = [path for path in base.glob(f"*-{start}{TRACE_SUFFIX}") if _is_own_directory(path)]
        if found:
            return max(found)
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{base}: no directory *-{start}{TRACE_SUFFIX} after {patience_s:g} s; rank 0 makes it, and "
                f"all processes of an engine must see the same folder (host {os.uname().nodename})"
            )
        time.sleep(_POLL_S)


def _is_own_directory(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
