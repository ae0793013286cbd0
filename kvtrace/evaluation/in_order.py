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


def worked_on(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int | None = None
) -> Iterator[Result]:
    """Yield work(item) of each item, in their order; at most `ahead` + 1 items are in memory.

    ahead: how many are started before a result is waited for; None: as many as there are threads.
    """
    pool = ThreadPoolExecutor(threads, "kvtrace-in-order")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > (threads if ahead is None else ahead):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
