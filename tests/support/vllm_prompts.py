"""Labelled prompts for the real-vLLM tests: several workloads, short and longer than one prefill chunk."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

CODE = inspect.getsource(argparse)
HAYSTACK = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


def labelled(
    prompt: str, workload: str, client_id: str, *, max_tokens: int = 12, **extra: Any
) -> dict[str, Any]:
    """Return one greedy request of exactly `max_tokens` output tokens."""
    return {
        "prompt": prompt,
        "sampling": {
            "temperature": 0,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "extra_args": {"kvtrace_workload": workload, "kvtrace_id": client_id},
        },
        **extra,
    }


CHAT = labelled("Tell me a short story about a river.", "chat", "chat-0", max_tokens=24)
CODE_COMPLETION = labelled(CODE[:1800], "code", "code-0")
GERMAN = labelled("Schreibe einen kurzen Satz über den Winter in den Bergen.", "deutsch", "deutsch-0")
RETRIEVAL = labelled(
    HAYSTACK * 30 + "The secret number is 4711. " + HAYSTACK * 8 + "What is the secret number?",
    "retrieval",
    "r-0",
)
ONE_BY_ONE = [[CHAT], [CODE_COMPLETION], [GERMAN], [RETRIEVAL]]
"""Rounds of one request: the batches, and so the last bit of every output, do not depend on timing."""

TOGETHER = [
    *(labelled(f"Name {n} kinds of trees.", "chat", f"trees-{n}", max_tokens=6 + n) for n in range(5)),
    labelled(CODE[2000:4000], "code", "code-1"),
    {"prompt": "No label at all.", "sampling": {"temperature": 0, "max_tokens": 4, "ignore_eos": True}},
]
HOSTILE_LABEL = "'; DROP TABLE rows; --\x1b[31m\u202e" + "x" * 10_000
HOSTILE = [labelled("A hostile label.", HOSTILE_LABEL, "h-0", max_tokens=2)]
REPEATED = [CODE_COMPLETION]
SALTED = [{**CODE_COMPLETION, "cache_salt": "salt"}]
