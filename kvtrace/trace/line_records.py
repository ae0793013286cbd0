"""The records that a trace keeps a line each: requests, sampling rules, rows that were dropped."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from kvtrace.trace.attention_format import QueryMode  # noqa: TC001 -- pydantic reads them
from kvtrace.trace.sealed import Count, Large, Name, Record, Seconds, Size, between

UNLABELLED: Final = "unlabelled"
"""The workload of a request whose client gave none."""
Span = tuple[Count, Count]


class RequestRecord(Record):
    """One request as the scheduler saw it. The last line for a `request` wins."""

    request: Count
    workload: Name = UNLABELLED
    client_id: Name | None = None
    """HMAC of the id that the client gave (`kvtrace_id`)."""
    external_id: Name | None = None
    """HMAC of the front end's request id, such as the X-Request-Id header; None where it cannot be told
    (`kvtrace.trace.request_ids`) or is not kept. Several requests may have one. Since 1.3."""
    prompt_hash: Name | None = None
    """HMAC of the prompt's token ids."""
    sampled: bool
    sampling_id: Count
    offset: Count = 0
    """Sampled positions are those with position % stride == offset."""
    is_probe: bool = False
    """True: K and V of all its positions are kept for attention, and Q at `query_positions`. Since 1.3."""
    query_positions: tuple[Count, ...] = ()
    """Positions of a probe at which Q is captured if the model computes them. Since 1.3."""
    prompt_tokens: Count
    output_tokens: Count = 0
    computed_tokens: Count = 0
    """Positions [0, computed_tokens) have been through the model, or were found in the prefix cache."""
    missing: tuple[Span, ...] = ()
    """Half-open position ranges that were not captured: never computed here (prefix-cache hits), or computed
    while capture was switched off."""
    switched_off: tuple[Span, ...] = ()
    """Those of `missing` that were computed while capture was switched off; none where it was not sampled."""
    preemptions: Count = 0
    drafts_proposed: Count | None = None
    """Drafts of speculative decoding that the model verified; None where it was off, or before 1.4."""
    drafts_accepted: Count | None = None
    """Those of them that became output tokens."""
    rejected: tuple[tuple[Count, Large], ...] = ()
    """(position, step): what this step or an earlier one wrote there was of a rejected draft; rows of such a
    position count from a later step on. Since 1.4."""
    status: Name
    """`running`, `stop`, `length`, `abort`, …: the engine's own finish reason."""
    arrived_at: Seconds
    """Unix seconds."""


class SamplingRecord(Record):
    """One set of sampling rules, in force from `started_at` until the next record's."""

    sampling_id: Count
    started_at: Seconds
    layers: tuple[Size, ...] | None = None
    """None: all."""
    workloads: tuple[Name, ...] | None = None
    position_stride: Annotated[int, between(1, 2**31 - 1)] = 16
    request_fraction: Annotated[float, between(0, 1)] = 1.0
    """0: capture was switched off, and requests that arrived then are not recorded."""
    byte_budget: Large | None = None
    """Bytes of raw K, V and Q per rank while these rules are in force; None: no limit."""
    queries: QueryMode = "none"
    """stored: Q at every `QUERY_STRIDE`-th sampled position. probe: as each request says. Since 1.3."""


class DroppedRecord(Record):
    """Rows of one request that a rank sampled and did not store."""

    request: Count
    num_rows: Large
    reason: Literal["budget", "queue_full", "write_failed", "hook_failed", "damaged"]
    """damaged: stored, and left out by a repair."""
