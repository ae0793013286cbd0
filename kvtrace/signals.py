"""Ctrl-C and SIGTERM end a command wherever they come: exit code 130 or 143, and no traceback."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_received: Final[list[int]] = []


def end_on_signals() -> None:
    """Have SIGINT and SIGTERM end the process as `sys.exit` does, so that whatever cleans up does so."""
    _received.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


@contextmanager
def ctrl_c_interrupts() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt inside the block, for what ends in its own way then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def exit_code_of_signal() -> int | None:
    """Return the exit code where a signal has come; None where none has.

    A library that is interrupted may raise an exception of its own in place of the one that ends the process.
    """
    return 128 + _received[0] if _received else None


def _end(number: int, _: object) -> None:
    _received.append(number)
    sys.exit(128 + number)
