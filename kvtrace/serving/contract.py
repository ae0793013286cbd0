"""The `[serving]`, `[cost]` and `[capacity]` tables of a `policy.toml`. docs/serving.md has every key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 -- pydantic reads the annotations
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvtrace.policy_file import PolicyKeys, read_policy

if TYPE_CHECKING:
    from kvtrace.serving.record import Served

_MILLISECOND_US: Final = 1000
_SECOND_US: Final = 1_000_000
_Milliseconds = Annotated[float, Field(gt=0, le=1e9)]
_Edge = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClassLimits(_Strict):
    """One class of requests and what its users are promised."""

    prompt_tokens: tuple[_Edge, _Edge] | None = None
    """Half-open range; None: the file names each request's class."""
    ttft_ms: _Milliseconds | None = None
    tpot_ms: _Milliseconds | None = None
    e2e_ms: _Milliseconds | None = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> ClassLimits:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("expected at least one of ttft_ms, tpot_ms, e2e_ms")
        if self.prompt_tokens is not None and self.prompt_tokens[0] >= self.prompt_tokens[1]:
            raise ValueError("prompt_tokens is expected to rise, such as [0, 2048]")
        return self

    @property
    def ttft_us(self) -> int | None:
        """Return the limit in microseconds; so do the others."""
        return _us(self.ttft_ms)

    @property
    def tpot_us(self) -> int | None:
        """Return the limit a token after the first."""
        return _us(self.tpot_ms)

    @property
    def e2e_us(self) -> int | None:
        """Return the limit from the planned arrival to the end."""
        return _us(self.e2e_ms)


class ServingLimits(_Strict):
    """The table called serving."""

    interval_s: float = Field(ge=0.001, le=1e6)
    """Planned arrivals in it count; it is the only denominator."""
    drain_s: float = Field(ge=0, le=1e6)
    """After the interval; what has not ended then is unfinished."""
    warmup_s: float = Field(default=0.0, ge=0, le=1e6)
    """From the first measured arrival to the interval."""
    runs: int = Field(default=3, ge=1, le=10_000, strict=True)
    """Of each variant; fewer are too few."""
    goodput_gain: float = Field(default=0.0, ge=0, lt=100)
    """Share of the baseline's goodput that the low end of the gain must reach, over all classes."""
    goodput_loss: float = Field(default=0.0, ge=0, lt=1)
    """Share of the baseline's goodput that a class may lose; a loss proven larger is a breach."""
    max_rejected_frac: float = Field(default=1.0, ge=0, le=1)
    """Of a class's requests."""
    min_accepted_frac: float | None = Field(default=None, gt=0, lt=1)
    """Of all requests: the highest offered rate that reaches it is the capacity at these limits."""
    classes: dict[str, ClassLimits] = Field(min_length=1, max_length=100)

    @property
    def interval_us(self) -> int:
        """Return the interval in microseconds; so do the others."""
        return round(self.interval_s * _SECOND_US)

    @property
    def drain_us(self) -> int:
        """Return the drain."""
        return round(self.drain_s * _SECOND_US)

    @property
    def warmup_us(self) -> int:
        """Return what lies before the interval."""
        return round(self.warmup_s * _SECOND_US)

    def class_of(self, served: Served) -> str | None:
        """Return a request's class: as its file names it, else by its prompt's length; None: none."""
        if served.workload is not None:
            return served.workload if served.workload in self.classes else None
        if served.prompt_tokens is not None:
            for name, limits in self.classes.items():
                edges = limits.prompt_tokens
                if edges is not None and edges[0] <= served.prompt_tokens < edges[1]:
                    return name
        return None

    @model_validator(mode="after")
    def _do_not_overlap(self) -> ServingLimits:
        ranges = sorted(one.prompt_tokens for one in self.classes.values() if one.prompt_tokens is not None)
        if any(one[1] > other[0] for one, other in pairwise(ranges)):
            raise ValueError("classes overlap in prompt_tokens")
        if any(not name.strip() or len(name) > 64 for name in self.classes):
            raise ValueError("a class's name is empty or longer than 64 characters")
        return self


class CostTerms(_Strict):
    """The table called cost."""

    per_hour: float = Field(ge=0, le=1e9)
    """Of the whole deployment."""
    currency: str = Field(min_length=1, max_length=8)
    gpus: int | None = Field(default=None, ge=1, le=100_000, strict=True)


class CapacityTerms(_Strict):
    """The table called capacity."""

    rollback: Literal["worst", "planned", "simulated"] = "planned"
    """Which reading of `kvtrace capacity` must fit the baseline."""


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    name: str = Field(min_length=1)
    date: date
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    serving: ServingLimits
    cost: CostTerms | None = None
    capacity: CapacityTerms = CapacityTerms()


@dataclass(frozen=True, slots=True)
class Contract:
    """Limits, and where they come from."""

    name: str
    date: str
    sha256: str
    confidence: float
    serving: ServingLimits
    cost: CostTerms | None
    capacity: CapacityTerms


def load_contract(path: Path | str) -> Contract:
    """Return what the policy at `path` promises of served requests.

    Raises PolicyError: no such file, no TOML, no table called serving, an unknown key, or an unusable limit.
    """
    read = read_policy(Path(path), _File, _KEYS)
    found = read.content
    return Contract(
        found.name,
        found.date.isoformat(),
        read.sha256,
        found.confidence,
        found.serving,
        found.cost,
        found.capacity,
    )


_KEYS: Final = PolicyKeys(
    ServingLimits,
    {"cost": CostTerms, "capacity": CapacityTerms, "classes": ClassLimits, "serving": ServingLimits},
    missing="useful goodput cannot be told without it",
)


def _us(limit_ms: float | None) -> int | None:
    return None if limit_ms is None else round(limit_ms * _MILLISECOND_US)
