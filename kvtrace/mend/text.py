"""What `kvtrace mend` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.remedies.text import steps_text, written_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.mend.model import Mended


def mended_text(mended: Mended, checkpoint: str) -> str:
    """Return what was found, what was written, and what to run next. checkpoint: the original."""
    return "\n".join(_lines(mended, checkpoint)) + "\n"


def _lines(mended: Mended, checkpoint: str) -> Iterator[str]:
    found = mended.audited
    yield f"Found: {found.headline} ({found.state})"
    yield f"  {found.command}"
    made = mended.written
    if made is None:
        if found.finding is None:
            yield "New scales would mend nothing: those that ran are sound. Nothing was written."
        else:
            yield "New scales would not mend this. Nothing was written."
            yield found.action
        return
    unit = "layer and tensor" if made.granularity == "tensor" else "KV head"
    yield f"Calibrated on this trace, one scale per {unit}, headroom {made.headroom:g}:"
    yield f"  {made.command}"
    if made.warning:
        yield f"{made.warning}."
    yield written_text(made.path, checkpoint, made.num_linked, made.copied)
    yield steps_text(mended.next)
