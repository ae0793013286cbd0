"""A replay for one command alone: its run is not kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.evaluation import ReplayRequest

MOST_WITH_INTERVALS: Final = 16
"""Candidates; their sums by group of requests cost as much as those by cell."""


def replay_into(request: ReplayRequest, intervals: bool | None, out: Path) -> Path:
    """Replay into `out` and return it. intervals: None: where they come at little cost."""
    from kvtrace.commands.progress import show_progress
    from kvtrace.evaluation import replay
    from kvtrace.profile.ready import has_tensors

    if intervals is None:
        intervals = len(request.candidates) <= MOST_WITH_INTERVALS and all(map(has_tensors, request.traces))
    with show_progress("replay") as progress:
        return replay(replace(request, intervals=intervals), out, progress=progress)
