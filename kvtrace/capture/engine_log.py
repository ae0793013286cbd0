"""Finds in vLLM's log what went wrong."""

from __future__ import annotations

import re
from typing import Final

from kvtrace.plain_text import plain

_PREFIX: Final = r"^(?:\([^()]*pid=\d+\) )?(?:ERROR [\d-]+ [\d:]+ (?:\[[^\]]*\] )?)?"
_RAISED: Final = re.compile(_PREFIX + r"((?:\w+\.)*\w*(?:Error|Exception|Exit)): (\S.*)$", re.MULTILINE)


def reason_in_log(log: str) -> str | None:
    """Return the end of the log's first traceback, the root of those after it; None: there is no traceback.

    >>> reason_in_log("(EngineCore pid=7) ERROR 11-29 17:01:02 [core.py:12] ValueError: no room")
    'ValueError: no room'
    """
    found = _RAISED.search(log)
    if found is None:
        return None
    return f"{found[1].rpartition('.')[2]}: {plain(found[2], limit=500)}"
