"""What a rule says: a stable id, how bad, how sure, the rows that show it, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["error", "warning", "note"]
Confidence = Literal["certain", "high", "medium", "low"]
Remedy = Literal[
    "recalibrate",  # new scales, of this traffic or in another granularity
    "look",  # the artifact shown layer by layer, with what it is held against
    "leave layers",  # layers in BF16
    "change setup",  # another engine, backend or format
    "capture",  # more or other requests
    "elsewhere",  # the scales are not what to mend
]
Head = tuple[int, int, str]
"""(layer, kv_head, `k` | `v`)"""

Tensor = Literal["k", "v"]
TENSORS: Final[tuple[Tensor, ...]] = ("k", "v")

IN_EFFECT: Final = "in_effect"
"""In an audit's stored evidence, where a finding is about what ran."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
_DOCUMENTED: Final = ConfigDict(
    use_attribute_docstrings=True, json_schema_serialization_defaults_required=True
)


@dataclass(frozen=True, slots=True)
class Where:
    """A part of the traffic."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    kind: Literal["workload", "phase", "position", "output-length"]
    names: tuple[str, ...] = ()
    """The workloads, or the phase."""
    first: int = 0
    """First position; or first generated token, counted from 0."""
    end: int | None = None
    """The first one that is no longer in it; None: it has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, on an artifact or on a run. `id` is its rule's and stays the same between versions."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    id: str
    severity: Severity
    confidence: Confidence = "certain"
    """certain: read off, not estimated. high, medium, low: by the number of requests that it rests on."""
    candidate: str | None = None
    """The scales it is about; None: the trace, or the one artifact that is audited."""
    message: str
    """What is the case, in one sentence."""
    action: str
    """What to do about it, with the engine's flag."""
    evidence: tuple[dict[str, Any], ...]
    """The numbers that settle it; of a run the first rows that `sql` gives."""
    sql: str = ""
    """Shows the evidence: `kvtrace query RUN --sql "…"`. Empty: there is no run."""
    heads: tuple[Head, ...] = ()
    """(layer, kv_head, tensor) concerned, worst first; empty: all, or only layers are known."""
    layers: tuple[int, ...] = ()
    """Layers concerned; empty: all."""
    tensors: tuple[Tensor, ...] = ()
    """Tensors concerned; empty: both, or the finding is of neither."""
    where: Where | None = None
    """Part of the traffic concerned; None: all of it, or the finding is not about traffic."""
    explained_by: tuple[str, ...] = ()
    """Ids of findings on the same scales that are this one's cause."""
    num_requests: int | None = None
    """Requests that an estimate rests on; None: nothing is estimated."""
    command: str | None = None
    """To run as it stands, and does what `action` says or shows more; None: nothing to run."""
    remedy: Remedy | None = None
    """What kind of thing `action` is; None: nothing is to be done."""
    impact: float = 0.0
    """For ranking among equals: larger is worse."""
    is_about_what_ran: bool = False
    """Whether it blames the scales in effect, and not those of `candidate`."""


def tensors_in(heads: Iterable[Head]) -> tuple[Tensor, ...]:
    """Return the tensors of some heads, K first.

    >>> tensors_in([(0, 0, "v"), (1, 0, "k"), (1, 1, "v")])
    ('k', 'v')
    """
    found = {tensor for _, _, tensor in heads}
    return tuple(tensor for tensor in TENSORS if tensor in found)


def numbers(**named: Any) -> tuple[dict[str, Any], ...]:
    """Return evidence of one row. named: what settles it; names carry the unit."""
    return (named,)


def confidence_of(num_requests: int) -> Confidence:
    """Return how sure an estimate is that rests on so many requests.

    Below 3 not even the lower end of an interval means anything, below 5 its upper end does not
    (kvtrace.stats.fractions).

    >>> [confidence_of(n) for n in (2, 3, 5)]
    ['low', 'medium', 'high']
    """
    return "low" if num_requests < 3 else "medium" if num_requests < 5 else "high"
