"""Get a trace's profile: the one it has, else made now."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import InputError
from kvtrace.files.staging import staged
from kvtrace.profile.build import DEFAULT_MEMORY_BYTES, profile_tensors
from kvtrace.profile.store import fill_profile, find_profile, is_foreign, put_profile
from kvtrace.trace.chunks import chunk_path
from kvtrace.trace.profile_format import PROFILE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace


def can_be_profiled(trace: Trace) -> bool:
    """Return whether all layers are bf16 or fp16; float32 has too many magnitudes to count."""
    return all(layer.dtype != "float32" for layer in trace.layers.values())


def has_tensors(trace: Trace) -> bool:
    """Return whether any tensor's file is there: without one, a profile stands for the trace."""
    return any(chunk_path(ref.store.path, ref.spec, ref.chunk).exists() for ref in trace.block_refs())


def require_tensors(trace: Trace, what: str) -> None:
    """Raise InputError where the trace has no tensors any more. what: what needs them."""
    if not has_tensors(trace):
        raise InputError(f"{trace.path}: its tensors are not there any more, and {what} needs them")


@dataclass(frozen=True, slots=True)
class ReadyProfile:
    """A profile, and how it came about."""

    profile: StoredProfile
    were_read: bool
    """Whether tensors were read for it."""
    note: str | None
    """What a user should know: files were reread, or the counts are not kept; None: nothing."""


@contextmanager
def ready_profile(
    trace: Trace,
    cells: Cells,
    device: str,
    *,
    directory: str = PROFILE_DIRECTORY,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ReadyProfile]:
    """Yield the profile over the cells.

    directory: its name in the trace, one for each kind of cells. A new one is kept in the trace; where that
    cannot be, only until the block ends.
    Raises IntegrityError: a chunk is missing or damaged. InputError: the tensors are not there any more, or
    there is no room for their counts.
    """
    found = find_profile(trace, directory)
    if found and found.serves(cells):
        files = f"{found.num_reread:,} tensor files"
        reread = f"its profile was used; {files} had other times, were reread and are the same"
        found = replace(found, cells=cells)
        yield ReadyProfile(found, found.num_reread > 0, reread if found.num_reread else None)
        return
    note = None
    if is_foreign(trace, directory):
        note = f"its {directory} was not made here with your key, so its tensors were counted again"
    require_tensors(trace, "a profile of them")

    def filled(place: AbstractContextManager[Path | str], stack: ExitStack) -> StoredProfile:
        """Return the profile in a new directory; where it does not fit, nothing of it is left there."""
        with ExitStack() as own:
            partial = Path(own.enter_context(place))
            tensors = profile_tensors(trace, cells, device, memory_bytes=memory_bytes, progress=progress)
            made = fill_profile(trace, cells, tensors, partial)
            stack.enter_context(own.pop_all())
        return made

    with ExitStack() as stack:
        path, made = trace.path / directory, None
        if os.access(trace.path, os.W_OK):
            with suppress(OSError):  # a full disk
                made = filled(staged(path), stack)
        if made is None:
            note = "cannot be written, so its counts are not kept: the next replay reads its tensors again"
            try:
                made = filled(tempfile.TemporaryDirectory(prefix="kvtrace-"), stack)
            except OSError as error:
                why = error.strerror or error
                raise InputError(f"{trace.path}: cannot write its counts: {why}") from error
        if made.record.seal is None:
            note = "its counts are not sealed, as no key can be made: the next replay reads its tensors again"
        if made.path.parent == trace.path:
            try:
                made = put_profile(made, trace, cells, path)
            except OSError as error:
                note = f"its counts are not kept: {path} cannot be replaced ({error.strerror})"
        yield ReadyProfile(made, True, note)
