"""The id that a front end gave a request, told from the id that vLLM's scheduler knows it by.

Source: vLLM 0.32. entrypoints/openai: the external id is `chatcmpl-X` for a chat and `cmpl-X-I` for prompt I
of a completion; X is the X-Request-Id header, else the body's request_id, else drawn. v1/engine
input_processor.py: the internal id is the external one and 8 hex digits, unless
VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set; parallel_sampling.py: answer K of several puts `K_` before it.
"""

from __future__ import annotations

import re
from typing import Final

_DRAWN: Final = re.compile(r"-[0-9a-f]{8}\Z")
_EXTERNAL: Final = re.compile(r"(?:\d+_)?(?:chatcmpl-(?P<chat>.+)|cmpl-(?P<text>.+)-\d+)\Z", re.DOTALL)
_RESPONSE: Final = re.compile(r"(?:chat)?cmpl-(.+)\Z", re.DOTALL)


def front_end_id(internal: str, *, is_randomized: bool) -> str | None:
    """Return X of a scheduler's request id; None: it is no such id, or does not say where X ends.

    is_randomized: whether the engine was started to end its ids with drawn digits. An id that looks otherwise
    than that lets be told nothing. Several prompts or answers of one call have the same X.

    >>> front_end_id("cmpl-ticket-17-0-1f2e3d4c", is_randomized=True)
    'ticket-17'
    >>> front_end_id("chatcmpl-ticket-1f2e3d4c", is_randomized=False)  # drawn, or the client's own end?
    >>> front_end_id("7-1f2e3d4c", is_randomized=True)  # offline: a number
    """
    ends_as_drawn = _DRAWN.search(internal)
    if (ends_as_drawn is not None) != is_randomized:
        return None
    found = _EXTERNAL.match(internal[: ends_as_drawn.start()] if ends_as_drawn else internal)
    return None if found is None else found["chat"] or found["text"]


def id_of_response(response: str) -> str | None:
    """Return X of the `id` in a response; None: vLLM does not name responses so.

    >>> id_of_response("chatcmpl-ticket-17"), id_of_response("cmpl-9f"), id_of_response("resp_3")
    ('ticket-17', '9f', None)
    """
    found = _RESPONSE.match(response)
    return None if found is None else found[1]
