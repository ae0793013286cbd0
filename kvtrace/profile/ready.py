"""Get a trace's profile: the one it has, else made now."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.profile.build import DEFAULT_MEMORY_BYTES, profile_tensors
from kvtrace.profile.store import find_profile, write_profile
from kvtrace.trace.chunks import chunk_path
from kvtrace.trace.profile_format import PROFILE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace


def can_be_profiled(trace: Trace) -> bool:
    """Return whether all layers are bf16 or fp16; float32 has too many magnitudes to count."""
    return all(layer.dtype != "float32" for layer in trace.layers.values())


def has_tensors(trace: Trace) -> bool:
    """Return whether any tensor's file is there: without one, a profile stands for the trace."""
    return any(chunk_path(ref.store.path, ref.spec, ref.chunk).exists() for ref in trace.block_refs())


@contextmanager
def ready_profile(
    trace: Trace,
    cells: Cells,
    device: str,
    *,
    directory: str = PROFILE_DIRECTORY,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[StoredProfile, bool]]:
    """Yield the profile over the cells and whether tensors were read for it.

    directory: its name in the trace, one for each kind of cells. A new one is kept in the trace; where the
    trace cannot be written, only until the block ends.
    Raises IntegrityError: a chunk is missing or damaged.
    """
    found = find_profile(trace, directory)
    if found and found.is_over(cells):
        yield found, False
        return
    tensors = profile_tensors(trace, cells, device, memory_bytes=memory_bytes, progress=progress)
    if os.access(trace.path, os.W_OK):
        yield write_profile(trace, cells, tensors, trace.path / directory), True
        return
    with tempfile.TemporaryDirectory(prefix="kvtrace-") as scratch:
        yield write_profile(trace, cells, tensors, Path(scratch) / directory), True
