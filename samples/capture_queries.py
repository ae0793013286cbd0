"""Serve a few short requests of the sample through real vLLM, and capture Q beside K and V: for harm.

Usage, from the project's root: capture_queries.py MODEL TRACE [probe]

It is the trace of `make demo`, and small, so Q is kept at every 4th sampled position alone. With `probe`
K and V of all positions are kept, some 25 MB: what the small trace is held against. The engine is eager, so
that the residual stream is measured.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

from capture_sample import capture
from traffic import SampleRequest, requests

WORKLOADS = ("chat", "language")
NUM_OF_WORKLOAD = 5
MAX_TOKENS = 24
STRIDE = 16


def main(model: str, trace: str, queries: str = "stored") -> None:
    """Write one trace of the first requests of two workloads in place of what is there."""
    capture(
        model,
        trace,
        first_requests(),
        *("--position-stride", str(STRIDE), "--queries", queries, "--engine-arg=enforce_eager=true"),
    )


def first_requests() -> list[SampleRequest]:
    """Return the first few requests of each workload that has short ones, with short answers."""
    taken: Counter[str] = Counter()
    chosen = []
    for chat in requests():
        if chat.workload in WORKLOADS and taken[chat.workload] < NUM_OF_WORKLOAD:
            taken[chat.workload] += 1
            chosen.append(replace(chat, max_tokens=MAX_TOKENS))
    return chosen


if __name__ == "__main__":
    main(*sys.argv[1:])
