"""Runs as small as they can be, by which a rule says what it finds and what it lets be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvtrace.findings.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.findings.finding import Head
    from kvtrace.findings.run.case import Case

HEADS: Final[tuple[Head, ...]] = ((0, 0, "k"), (0, 0, "v"), (0, 1, "k"), (0, 1, "v"))
SOUND: Final = {
    "num_values": 1_000,
    "sum_sq_signal": 1e6,
    "sum_sq_error": 700.0,
    "sum_sq_clip_error": 0.0,
    "num_clipped": 0,
    "num_flushed": 0,
    "num_nonfinite": 0,
    "max_abs": 400.0,
}
"""A head's sums where the scale covers 448 and nothing but rounding is lost."""
CLIPS: Final = {"num_clipped": 20, "sum_sq_clip_error": 5e4, "sum_sq_error": 5.07e4, "max_abs": 900.0}
"""5 % of the energy is lost beyond the range."""
FLUSHES: Final = {"num_flushed": 300}
"""30 % of the values become 0."""
ORDINARY: Final = {
    "channel_count": 9,
    "num_values": 900,
    "sum_sq_signal": 1e3,
    "sum_sq_error": 0.7,
    "max_abs": 2.0,
}
"""Sums of the ordinary channels of a head in which one channel of ten holds 99.9 % of the energy."""
HIDDEN_LOSS: Final = ORDINARY | {"sum_sq_error": 6.5, "num_flushed": 90}
"""They are at 21.9 dB, which adds less than 1 % to the head's error."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that are alike, each captured at the same positions."""

    workload: str = "chat"
    requests: int = 8
    prompt_tokens: int = 4_096
    positions: tuple[int, ...] = (16,)
    num_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Clipped:
    """The vectors of a head that are clipped: all that fulfil what is given."""

    workload: str | None = None
    from_position: int = 0
    from_step: int | None = None
    """Generated tokens alone, from this one on."""
    in_prefill: bool = False
    """Prompts alone."""


@dataclass(frozen=True, kw_only=True)
class RunExample:
    """One layer of two heads under the scales of an artifact; what is not said is sound."""

    traffic: tuple[Traffic, ...] = (Traffic(),)
    sums: Mapping[Head, Mapping[str, float]] = field(default_factory=dict)
    """What differs from `SOUND`, under every candidate."""
    ordinary: Mapping[Head, Mapping[str, float]] = field(default_factory=dict)
    """Sums over the ordinary channels of heads that have outlier channels."""
    clipped: Mapping[Head, Clipped] = field(default_factory=dict)
    live: float | None = None
    """Scale in effect at capture, where the artifact's is 1.5; None: no FP8 was."""
    invalid_as: str | None = None
    """The `reason_id` with which the artifact cannot be replayed."""
    fp8_format: str = "e4m3fn"
    """Of all scales that are compared."""
    cache_dtype: str | None = None
    """A cache format that is compared beside it; None: none is."""
    audit: tuple[Mapping[str, Any], ...] = ()
    """What the replay found on the artifact: rows of `findings`."""


if TYPE_CHECKING:
    RunRule = Rule[Case, RunExample]
else:
    RunRule = Rule
