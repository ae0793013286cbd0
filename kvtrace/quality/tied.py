"""What relates lost answers to what a replay counted of their requests."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from kvtrace.quality.comparison import Rate  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.quality.part import Part

TIE_SCHEMA_VERSION: Final = "1.0"

Measure = Literal["clipped", "out_of_range"]
Tensor = Literal["k", "v"]


class TieVerdict(StrEnum):
    """Whether what was captured goes with lost answers. It never says that one causes the other."""

    goes_with = "goes with"
    nothing = "nothing tells"
    too_few = "too few to tell"


class Signal(Part):
    """A share of vectors, of all heads of K or V or of one head, between lost and kept answers."""

    tensor: Tensor
    measure: Measure
    layer: int | None
    """None, as is kv_head: of all heads."""
    kv_head: int | None
    auc: float
    """Chance that a lost answer has more of it than a kept one, ties half; 0.5: no difference."""
    p_value: float
    """Of the largest of all signals by chance, with labels drawn anew; corrected for their number."""
    num_lost_with: int
    """Lost answers with any."""
    num_kept_with: int
    lost_frac: Rate
    """Share of lost answers with any, by request."""
    kept_frac: Rate


class LostAnswer(Part):
    """An answer that the variant lost, and what was counted of its request under the candidate."""

    id: str
    task: str
    repetition: int
    requests: tuple[int, ...]
    """Their numbers in the trace."""
    tensor: Tensor
    """The tensor with the larger share of clipped vectors; so are the others."""
    vectors_clipped_frac: float
    vectors_out_of_range_frac: float
    rank: int
    """1: the largest share of clipped vectors among all answers compared; equal ones share the best."""
    num_ranked: int
    worst_layer: int | None
    """None: all in range."""
    worst_kv_head: int | None


class QualityTie(Part):
    """The whole."""

    schema_version: str = TIE_SCHEMA_VERSION
    verdict: TieVerdict
    tables: tuple[str, ...]
    trace: str
    run: str
    candidate: str
    variant: str
    baseline: str
    num_answers: int
    """Of the baseline."""
    num_joined: int
    """Of them, with their requests in the trace."""
    num_lost: int
    """Units that passed under every run of the baseline and failed under the variant; a unit is a cluster."""
    num_kept: int
    num_lost_by_noise: int
    """Answers that the baseline's second run lost: neither lost nor kept."""
    num_not_captured: int
    """Answers whose requests are not in the run, or have fewer than 20 vectors there."""
    num_signals: int
    """Compared at once."""
    confidence: float
    signals: tuple[Signal, ...]
    """K and V over all heads, then the heads that tell most, at most 10."""
    lost: tuple[LostAnswer, ...]
    """Most clipped first, at most 1,000."""
