"""Where capture's own threads run.

vLLM's CPU worker pins its main thread to a core, and new threads inherit that.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

logger = logging.getLogger("kvtrace.capture")

_NICENESS: Final = 10


def leave_the_engines_core() -> None:
    """Let the calling thread run on every core, at a lower priority than the engine."""
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    except OSError as error:
        logger.warning("kvtrace: a capture thread shares the engine's core: %s", error)
