"""Ctrl-C and SIGTERM end a command wherever they come: exit code 130 or 143, and no traceback."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_received: Final[list[int]] = []
EXIT_INTERRUPTED: Final = 130
_AGAIN_S: Final = 0.01


def end_on_signals() -> None:
    """Have SIGINT and SIGTERM end the process as `sys.exit` does, so that whatever cleans up does so."""
    _received.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def try_again_after_finalizers() -> None:
    """Have an exit that came inside a finalizer, where nothing can be raised, come again at once."""
    sys.unraisablehook = _try_again


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Have both raise KeyboardInterrupt inside the block, for what ends in its own way then."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code_of_signal() -> int | None:
    """Return the exit code where a signal has come; None where none has.

    A library that is interrupted may raise an exception of its own in place of the one that ends the process.
    """
    return 128 + _received[0] if _received else None


def _end(number: int, _: object) -> None:
    _received.append(number)
    sys.exit(128 + number)


def _interrupt(number: int, _: object) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def _try_again(unraisable: sys.UnraisableHookArgs) -> None:
    if not _received or not isinstance(unraisable.exc_value, SystemExit):
        sys.__unraisablehook__(unraisable)
        return
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(exit_code_of_signal()))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
