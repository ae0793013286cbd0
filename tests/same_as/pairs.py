"""Run the cases on both sides at once, one thread a side, and pair what they give by its name."""

from __future__ import annotations

from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING

from same_as.outputs import case_outputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from same_as.commands import Case
    from same_as.outputs import Output
    from same_as.side import Side

    Pair = tuple[Output | None, Output | None]


def paired_outputs(
    sides: tuple[Side, Side], cases: Sequence[Case], inputs: Path, *, keep: bool
) -> Iterator[Pair]:
    """Yield each output of the base with the tree's, as soon as both are there; None: that side has none.

    Both sides do the same work, each with a server of its own, so that neither waits long for the other.
    """
    base, tree = (_Run(side, cases, inputs, keep=keep) for side in sides)
    for _ in cases:
        waiting: dict[str, Output] = {}
        of_tree = tree.outputs_of_a_case()
        for one in base.outputs_of_a_case():
            while one.name not in waiting and (other := next(of_tree, None)) is not None:
                waiting[other.name] = other
            yield one, waiting.pop(one.name, None)
        yield from ((None, one) for one in (*waiting.values(), *of_tree))


class _Run:
    """A thread that runs all cases on one side. It ends with the program, wherever it stands."""

    def __init__(self, side: Side, cases: Sequence[Case], inputs: Path, *, keep: bool) -> None:
        self._queue: Queue[Output | BaseException | None] = Queue()
        self._given = (side, cases, inputs, keep)
        Thread(target=self._run, daemon=True).start()

    def outputs_of_a_case(self) -> Iterator[Output]:
        """Yield until the case is over. Raises what went wrong in the thread."""
        while (one := self._queue.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one

    def _run(self) -> None:
        side, cases, inputs, keep = self._given
        try:
            for case in cases:
                for one in case_outputs(side, case, inputs, keep=keep):
                    self._queue.put(one)
                self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 -- raised where the outputs are read
            self._queue.put(error)
