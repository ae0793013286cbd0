"""Work on one item after the other in several threads, results in the order of the items."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    Item = TypeVar("Item")
    Result = TypeVar("Result")


def worked_on(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield work(item) of each item, in their order; at most threads + 1 items are in memory."""
    with ThreadPoolExecutor(threads, "kvtrace-evaluate") as pool:
        pending: deque[Future[Result]] = deque()
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
