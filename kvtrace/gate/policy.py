"""`policy.toml`: the limits a deployment must keep, written before the results are read.

name = "chat service"
date = 2026-11-20
confidence = 0.95              # of the intervals; optional
false_discovery_rate = 0.05    # of the claim "this head exceeds its limit"; optional
worst_request_frac = 1.0       # assumed largest share of one request's vectors; optional

[limits]                       # any of these; each head, K and V apart, must keep them
vectors_clipped_frac = 0.01
clip_error_frac = 0.10
sqnr_db = 25.0                 # a minimum; all others are maxima

[coverage]                     # of every protected segment
requests = 30
tokens = 500

[[segments]]
name = "all"                   # no workloads given: each workload of the run is a segment of its own
[[segments]]
name = "long prompts"
workloads = ["retrieval"]
phase = "prefill"              # or decode; both when absent
positions = [4096, 8192]       # edges: 4,096 to 8,191; more edges make more segments
prompt_tokens = [2048, 8193]   # edges, as are output_tokens
limits = {vectors_clipped_frac = 0.02}    # instead of [limits], not in addition

[harm]                         # over all traffic with queries; optional, one of the two or both
max_residual_error = 0.01
max_ratio = 1.5
baseline = "fresh scales"      # a candidate of the run; this one unless said otherwise

# A vector with NaN or inf breaches any policy. Every head decides for itself, its K and its V apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 -- pydantic reads the annotations
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kvtrace.policy_file import PolicyKeys, read_policy
from kvtrace.quality.policy import QualityLimits
from kvtrace.serving.contract import CapacityTerms, CostTerms, ServingLimits

VECTOR_LIMITS: Final = ("vectors_clipped_frac", "vectors_out_of_range_frac")
"""Counted per vector and so per request: intervals exist, and any segment can be measured."""
VALUE_LIMITS: Final = ("clipped_frac", "out_of_range_frac", "clip_error_frac", "sqnr_db")
"""Summed per cell: for whole position octaves and any request length. Judged by an interval where the run has
request groups (`kvtrace replay --intervals`) and the segment holds all positions; else by the estimate."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Decibels = Annotated[float, Field(ge=-1000, le=1000)]
Edge = Annotated[int, Field(ge=0, le=2**31 - 1)]
Least = Annotated[int, Field(ge=1, le=2**63 - 1, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limits(_Strict):
    """What every head must keep in a segment. `sqnr_db` is a minimum, all others are maxima."""

    vectors_clipped_frac: Fraction | None = None
    vectors_out_of_range_frac: Fraction | None = None
    clipped_frac: Fraction | None = None
    out_of_range_frac: Fraction | None = None
    clip_error_frac: Fraction | None = None
    """Share of the squared error that is due to clipping."""
    sqnr_db: Decibels | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Limits:
        if not self.given():
            raise ValueError("expected at least one limit")
        return self

    def given(self) -> dict[str, float]:
        """Return the limits that are set, by name."""
        values = {name: getattr(self, name) for name in (*VECTOR_LIMITS, *VALUE_LIMITS)}
        return {name: value for name, value in values.items() if value is not None}


class Coverage(_Strict):
    """What a segment must hold before anything is called within the limits."""

    requests: Least
    tokens: Least
    """Captured rows."""


class Segment(_Strict):
    """A part of the traffic that the policy protects. Workloads are never pooled."""

    name: str = Field(min_length=1)
    workloads: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """None: every workload of the run, each apart."""
    phase: Literal["prefill", "decode"] | None = None
    positions: tuple[Edge, ...] | None = None
    """Ascending edges; consecutive ones make a half-open range."""
    prompt_tokens: tuple[Edge, ...] | None = None
    output_tokens: tuple[Edge, ...] | None = None
    limits: Limits | None = None
    coverage: Coverage | None = None

    @field_validator("positions", "prompt_tokens", "output_tokens")
    @classmethod
    def _are_edges(cls, edges: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if edges is not None and (len(edges) < 2 or any(a >= b for a, b in pairwise(edges))):
            raise ValueError("expected two or more ascending edges ≥ 0, such as [0, 2048, 8192]")
        return edges

    @property
    def measures_values(self) -> bool:
        """Whether value-level sums exist: they are kept per position octave, and not by request length."""
        edges = self.positions or ()
        on_octaves = all(edge == 0 or (edge >= 2 and edge & (edge - 1) == 0) for edge in edges)
        return on_octaves and self.prompt_tokens is None and self.output_tokens is None


class Approved(_Strict):
    """What the limits were approved for; a run that differs fires a recalibration trigger."""

    weights_digest: str | None = None
    tokenizer_digest: str | None = None
    chat_template_digest: str | None = None
    attention_backend: str | None = None
    engine_version: str | None = None
    kv_cache_dtype: str | None = None


class HarmLimits(_Strict):
    """What errors may do to attention, over all traffic with queries."""

    max_residual_error: float | None = Field(default=None, gt=0)
    """R: the squared error over the residual stream, summed over layers."""
    max_ratio: float | None = Field(default=None, gt=0)
    """Harm over the baseline's on the same queries."""
    baseline: str = Field(default="fresh scales", min_length=1)
    """A candidate of the run."""

    @model_validator(mode="after")
    def _has_one(self) -> HarmLimits:
        if not self.given():
            raise ValueError("expected max_residual_error, max_ratio or both")
        return self

    def given(self) -> dict[str, float]:
        """Return the limits that are set, by name."""
        values = {"max_residual_error": self.max_residual_error, "max_ratio": self.max_ratio}
        return {name: value for name, value in values.items() if value is not None}


class Policy(_Strict):
    """The whole file."""

    schema_version: Literal["1.0", "1.1"] = "1.0"
    name: str = Field(min_length=1)
    date: date
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    false_discovery_rate: float = Field(default=0.05, gt=0, lt=0.5)
    worst_request_frac: float = Field(default=1.0, gt=0, le=1)
    limits: Limits | None = None
    coverage: Coverage
    segments: tuple[Segment, ...] = Field(min_length=1)
    harm: HarmLimits | None = None
    approved: Approved = Approved()
    quality: QualityLimits | None = None
    """Read by `kvtrace quality compare`; since 1.1."""
    serving: ServingLimits | None = None
    """Read by `kvtrace goodput` and `kvtrace decide`, as are the next two; since 1.1."""
    cost: CostTerms | None = None
    capacity: CapacityTerms | None = None

    @model_validator(mode="after")
    def _can_be_measured(self) -> Policy:
        names = [segment.name for segment in self.segments]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two segments are called {twice!r}; expected a name of its own for each")
        for segment in self.segments:
            limits = segment.limits or self.limits
            if limits is None:
                raise ValueError(f"segment {segment.name!r} has no limits, and there is no [limits] table")
            refused = [name for name in limits.given() if name in VALUE_LIMITS]
            if refused and not segment.measures_values:
                raise ValueError(
                    f"segment {segment.name!r}: {', '.join(refused)} cannot be measured by request length or "
                    "between powers of two of the position; give the segment limits of its own without it"
                )
        return self


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """A policy and the file it was read from."""

    path: Path
    sha256: str
    """Over the file's bytes."""
    policy: Policy


def load_policy(path: Path | str) -> PolicyFile:
    """Return the policy at `path`.

    Raises PolicyError: no such file, no TOML, an unknown key, or a limit that cannot be used.
    """
    path = Path(path)
    found = read_policy(path, Policy, _KEYS)
    return PolicyFile(path, found.sha256, found.content)


_KEYS: Final = PolicyKeys(
    Policy,
    {
        "limits": Limits,
        "coverage": Coverage,
        "segments": Segment,
        "harm": HarmLimits,
        "approved": Approved,
        "quality": QualityLimits,
        "serving": ServingLimits,
        "cost": CostTerms,
        "capacity": CapacityTerms,
    },
    missing="every policy states it",
)
