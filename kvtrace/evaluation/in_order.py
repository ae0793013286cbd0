"""Work on one item after the other in several threads, results in the order of the items."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from types import TracebackType

Item = TypeVar("Item")
Result = TypeVar("Result")


def worked_on(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield work(item) of each item, in their order; at most threads + 1 items are in memory."""
    with InOrder(work, threads) as pool:
        for item in items:
            yield from pool.put(item)
        yield from pool.rest()


class InOrder(Generic[Item, Result]):
    """The same for items that are put in one by one."""

    def __init__(self, work: Callable[[Item], Result], threads: int) -> None:
        self._work, self._threads = work, threads
        self._pool = ThreadPoolExecutor(threads, "kvtrace-evaluate")
        self._pending: deque[Future[Result]] = deque()

    def __enter__(self) -> Self:
        return self

    def put(self, item: Item) -> Iterator[Result]:
        """Start on an item, and yield the result of an earlier one once more than `threads` are started."""
        self._pending.append(self._pool.submit(self._work, item))
        if len(self._pending) > self._threads:
            yield self._pending.popleft().result()

    def rest(self) -> Iterator[Result]:
        """Yield the results that are left."""
        while self._pending:
            yield self._pending.popleft().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
