"""What was written, and the steps that are left, as commands print them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.remedies.step import Step


def written_text(path: str, checkpoint: str, num_linked: int, copied: Sequence[str]) -> str:
    """Return how a deployable copy of `checkpoint` came about, and how to send it elsewhere.

    >>> print(written_text("new", "old", 2, ["model.safetensors"]))
    Written to new: scales, 2 links to files of old, a copy of model.safetensors without its older scales
    To send it elsewhere, resolve the links: cp -rL new new-whole
    """
    parts = ["scales"]
    if num_linked:
        parts.append(f"{num_linked} links to files of {checkpoint}")
    if copied:
        parts.append(f"a copy of {', '.join(copied)} without its older scales")
    lines = [f"Written to {path}: {', '.join(parts)}"]
    if num_linked:
        whole = shlex.join(["cp", "-rL", path, f"{path}-whole"])
        lines.append(f"To send it elsewhere, resolve the links: {whole}")
    return "\n".join(lines)


def steps_text(steps: Sequence[Step]) -> str:
    """Return what to do next, each command on a line of its own.

    >>> from kvtrace.remedies.step import Step
    >>> print(steps_text([Step("report", "Compare.", "kvtrace report A B")]))
    Compare.
      kvtrace report A B
    """
    return "\n".join(_lines(steps))


def _lines(steps: Sequence[Step]) -> Iterator[str]:
    for step in steps:
        yield step.text
        if step.command is not None:
            yield f"  {step.command}"
