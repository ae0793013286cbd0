"""A job of vLLM offline, in vLLM's own environment, for a command that waits outside for its events.

The job is one line of JSON on stdin; the end of stdin means that whoever asked is gone. Events go to the file
descriptor that the command line names, one line of JSON each: {"total": n}, {"done": n}, {"engine": facts},
and at last {"error": text} if there is one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from tqdm import tqdm  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Tell = Callable[[dict[str, Any]], None]

CLOSE_TIMEOUT_S: Final = 60.0
"""For the workers to write what is queued."""
_WORKER_TIMEOUT: Final = "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"
_FOR_THE_ENGINE_S: Final = 10.0
"""Of it, for the engine itself once its workers have ended."""


def run_job(events_fd: int, work: Callable[[dict[str, Any], Tell], None]) -> None:
    """Do one job. Exits with 1, after an error event, if it cannot, and with 143 if it is stopped.

    vLLM kills workers 5 s after it asked them to end (vllm/envs.py of 0.32): too early where a disk or a
    processor is busy. They get as long as the job waits, unless the environment says otherwise.
    """
    os.environ.setdefault(_WORKER_TIMEOUT, f"{CLOSE_TIMEOUT_S - _FOR_THE_ENGINE_S:.0f}")
    os.set_inheritable(events_fd, False)
    with os.fdopen(events_fd, "w", buffering=1, encoding="utf-8") as events:

        def tell(event: dict[str, Any]) -> None:
            events.write(json.dumps(event) + "\n")

        signal.signal(signal.SIGTERM, _stop)
        job = json.loads(sys.stdin.readline())
        threading.Thread(target=_stop_at_end_of_stdin, name="kvtrace-stdin", daemon=True).start()
        try:
            work(job, tell)
        except Exception as error:
            tell({"error": f"{type(error).__name__}: {error}"})
            raise


def progress_bar(tell: Tell) -> type[tqdm]:
    """Return what vLLM's `use_tqdm` takes: a bar that draws nothing and tells how many requests are done."""
    done = 0

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, iterable: Any = None, **options: Any) -> None:
            self._counts_requests = iterable is None  # else it counts prompts on their way into the engine
            super().__init__(iterable, **{**options, "file": io.StringIO()})

        def update(self, n: float = 1) -> None:
            nonlocal done
            if self._counts_requests:
                done += int(n)
                tell({"done": done})
            super().update(n)

    return Bar


def _stop(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being closed: do not interrupt that
    sys.exit(128 + signal_number)


def _stop_at_end_of_stdin() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
