"""What `kvtrace goodput` says: useful answers by class and run, and how variants differ."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from kvtrace.serving.percentiles import Percentile  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.serving.spread import Spread  # noqa: TC001

GOODPUT_SCHEMA_VERSION: Final = "1.1"

ProblemId = Literal[
    "refused", "closed-loop", "burst", "load-not-said", "no-plan", "time-missing", "generator-late",
    "no-class", "interval-not-filled",
]  # fmt: skip
"""Why a run's goodput is not told."""
NoteId = Literal["plan-is-dispatch", "load-stopped", "unjudged", "chunks"]


class Part(BaseModel):
    """A part of what is said. None anywhere: not measured."""

    model_config = ConfigDict(frozen=True)


class Problem(Part):
    """Why a run cannot be used."""

    id: ProblemId
    text: str


class Note(Part):
    """What must be known of a run that can."""

    id: NoteId
    text: str


class Latencies(Part):
    """Of completed requests, from the planned arrival; the run's `latency_clock` says if it is another."""

    ttft: tuple[Percentile, ...] = ()
    tpot: tuple[Percentile, ...] = ()
    itl: tuple[Percentile, ...] = ()
    """Gaps between tokens, of all tokens, to three digits; where the file gives their times. Since 1.1."""
    e2e: tuple[Percentile, ...] = ()
    client_delay: tuple[Percentile, ...] = ()
    """From the planned arrival to sending."""
    engine_queue: tuple[Percentile, ...] = ()
    """In the engine, before it is first scheduled."""
    engine_ttft: tuple[Percentile, ...] = ()
    """From the arrival in the engine's front end."""


class ClassGoodput(Part):
    """One class of one run, or all together (`all`)."""

    name: str
    offered: int
    """Planned in the interval."""
    accepted: int
    late: int
    wrong: int
    unjudged: int
    unjudged_in_time: int
    rejected: int
    failed: int
    unfinished: int
    goodput: float | None
    """Accepted a second of the interval."""
    goodput_most: float | None
    """If all that is unjudged and in time were right."""
    accepted_frac: float | None
    completed: int
    """Ended by the deadline, whatever the answer."""
    retries: int
    latencies: Latencies


class ToolNumber(Part):
    """Good requests a second as load generators count them, and what they count otherwise."""

    reported: float | None
    """As the file says, by the limits that the tool was given."""
    good: int
    """Counted here as a tool does, by this contract's limits: successes, from sending."""
    per_second: float
    duration_s: float
    """First sending to last end."""
    wrong: int
    """Of the good: judged wrong."""
    unjudged: int
    outside: int
    """Of the good: not planned in the interval, warm-up among them."""
    late_by_plan: int
    """Of the good: in time from sending, late from the planned arrival, or ended after the deadline."""


class RunGoodput(Part):
    """One run."""

    variant: str
    repetition: int
    name: str
    format: str
    load: str
    rate: float | None
    latency_clock: Literal["planned", "dispatch"]
    problems: tuple[Problem, ...]
    """Empty: the run counts."""
    notes: tuple[Note, ...]
    num_before: int
    """Measured requests planned before the interval."""
    num_after: int
    num_engine_warmup: int
    num_prefix_warmup: int
    num_unclassed: int
    drain_used_s: float | None
    load_stopped: bool | None
    """Whether arrivals ended with the interval: an emptying server is faster."""
    cost_per_accepted: float | None
    """By the hour; None: no price, or no accepted answer."""
    recorded_cost_per_accepted: float | None
    """By the requests' own costs, all attempts; None: not all have one."""
    classes: tuple[ClassGoodput, ...]
    all: ClassGoodput
    tool: ToolNumber | None


class EngineSpan(Part):
    """One life of a server, over its scrapes. Engine-wide: of no class."""

    begin_s: float | None
    end_s: float | None
    num_scrapes: int
    cache_dtype: str | None
    num_blocks: int | None
    num_tokens: int | None
    grown: dict[str, float]
    """Counters, from the first scrape to the last."""
    peaks: dict[str, float]


class ClassSpread(Part):
    """A class over the runs that count."""

    name: str
    goodput: Spread | None
    accepted_frac: Spread | None


class VariantGoodput(Part):
    """One variant over its runs at one offered rate."""

    variant: str
    rate: float | None
    """Requests a second that were asked for; None: the files do not say."""
    num_runs: int
    num_used: int
    classes: tuple[ClassSpread, ...]
    all: ClassSpread
    cost_per_accepted: Spread | None
    engine: tuple[EngineSpan, ...]
    restarts: int | None
    """From a run's first arrival to its deadline where scrapes are cut to runs. None: no scrape."""
    unsupported: str | None = None
    """Why it could not be served; it has no runs then. Since 1.1."""
    is_cut: bool = False
    """Whether `engine` is of the runs' intervals alone; False: of all scrapes, since a run's clock has no
    epoch, a scrape no time, or none was taken in a run. Since 1.1."""


class Gain(Part):
    """A candidate less the baseline in one class, run by run."""

    name: str
    difference: Spread | None
    """Accepted a second."""
    baseline: float | None
    """Mean of the paired runs."""


class LengthDifference(Part):
    """Output tokens of the same requests, candidate less baseline."""

    num_requests: int
    mean: float
    low: float | None
    high: float | None


class VariantPair(Part):
    """A candidate against the baseline at one offered rate."""

    baseline: str
    candidate: str
    rate: float | None
    num_pairs: int
    """Runs of equal number that both count."""
    classes: tuple[Gain, ...]
    all: Gain
    output_tokens: LengthDifference | None


class EnvelopePoint(Part):
    """Runs of one variant at one offered rate and one admission limit."""

    variant: str
    rate: float | None
    admission_limit: int | None
    num_runs: int
    goodput: float
    accepted_frac_low: float
    """Low end over all requests of the runs."""
    reaches: bool | None
    """Whether that is the contract's share; None: it states none."""


class GoodputReport(Part):
    """The whole."""

    schema_version: str = GOODPUT_SCHEMA_VERSION
    tables: tuple[str, ...]
    policy_name: str
    policy_date: str
    policy_sha256: str
    confidence: float
    interval_s: float
    drain_s: float
    currency: str | None
    gpus: int | None
    runs: tuple[RunGoodput, ...]
    variants: tuple[VariantGoodput, ...]
    pairs: tuple[VariantPair, ...]
    envelope: tuple[EnvelopePoint, ...]
