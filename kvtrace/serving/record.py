"""One served request and one run of a load, as every tool's file becomes them.

Times are whole microseconds on one clock of the run, so that a limit is met or not, without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Status = Literal["completed", "rejected", "failed", "cancelled"]
"""rejected: HTTP 429 or 503, or the connection was refused. cancelled: by the client or the run's own end."""
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
Phase = Literal["measured", "engine warm-up", "prefix warm-up"]
"""Warm-up counts nowhere. The engine's compiles and fills pools; a prefix's fills the cache for reuse."""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
Load = Literal["open", "closed", "burst", "unknown"]
"""open: requests arrive by a plan, whatever the server does. closed: each waits for another's answer.
burst: all at once. Only an open load can support a claim of goodput."""
LOADS: Final[tuple[Load, ...]] = get_args(Load)
PlannedSource = Literal["trace", "targeted", "issued", "dispatch"]
"""Where planned arrivals come from: an arrival trace, GuideLLM's target, aiperf's credit, or only the moment
of sending, which hides how late the generator itself was."""
PLANNED_SOURCES: Final[tuple[PlannedSource, ...]] = get_args(PlannedSource)
Stamps = Literal["tokens", "chunks", "none"]
"""What times between tokens would rest on: tokens, or chunks of a stream that may hold several."""
STAMPS: Final[tuple[Stamps, ...]] = get_args(Stamps)

MAX_SERVED: Final = 2_000_000
"""Requests of a table."""
MAX_RUNS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Served:
    """One logical request: the last attempt's outcome, the first one's plan. None: the file does not say."""

    id: str
    status: Status
    phase: Phase = "measured"
    workload: str | None = None
    """The class as the file names it."""
    planned_us: int | None = None
    dispatched_us: int | None = None
    first_us: int | None = None
    """First token at the client."""
    last_us: int | None = None
    """Last token at the client."""
    done_us: int | None = None
    gaps_us: tuple[int, ...] | None = None
    """Between tokens at the client; None: the file has no token's time."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    accepted: bool | None = None
    """By a validator; None: not judged."""
    retries: int = 0
    cost: float | None = None
    """Of all attempts, in the contract's currency."""
    engine_queue_us: int | None = None
    engine_first_us: int | None = None
    """From the arrival in the engine's front end to its first token."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One run of a load generator."""

    name: str
    format: str
    load: Load = "unknown"
    planned_source: PlannedSource | None = None
    stamps: Stamps = "none"
    has_ids: bool = True
    """Whether ids are the client's, so that answers judged elsewhere can be joined."""
    rate: float | None = None
    """Requests a second that were asked for."""
    max_concurrency: int | None = None
    duration_us: int | None = None
    """As the tool says."""
    tool_goodput: float | None = None
    """Good requests a second, as the tool says."""
    tool_version: str | None = None
    refused: str | None = None
    """Why no goodput can be told from the file; latencies may be."""
