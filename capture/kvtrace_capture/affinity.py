"""Where capture's own threads run.

vLLM's CPU worker pins its main thread to a core, and new threads inherit that. Cores that an operator gave
the engine (taskset, numactl) are another matter: there capture stays where the engine is.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

logger = logging.getLogger("kvtrace.capture")

_NICENESS: Final = 10


def leave_the_engines_core() -> None:
    """Lower the calling thread's priority and, where it is pinned to one core, let it run on its parent's.

    The parent process is the one that vLLM did not pin.
    """
    try:
        if len(os.sched_getaffinity(0)) == 1:
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid() or 0))
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    except OSError as error:
        logger.warning("kvtrace: a capture thread shares the engine's core: %s", error)
