"""A progress bar on stderr; silent where stderr is no terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes (done, total) and moves the bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # A dumb terminal cannot move its cursor: every step would be a line of its own.
    is_hidden = not console.is_terminal or console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, disable=is_hidden) as bar:
        tasks: list[TaskID] = []

        def move(done: int, total: int) -> None:
            if not tasks:  # nothing is shown where nothing is read
                tasks.append(bar.add_task(what, total=total))
            bar.update(tasks[0], completed=done, total=total)

        yield move
