"""What a comparison of quality says."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from kvtrace.quality.moved import LogprobComparison  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.quality.part import Part

QUALITY_SCHEMA_VERSION: Final = "1.0"

ReasonId = Literal[
    "loss-within-margin",
    "loss-beyond-margin",
    "under-the-floor",
    "baseline-under-the-floor",
    "too-few-pairs",
    "interval-reaches-across",
    "floor-not-shown",
    "unjudged",
    "unpaired",
    "no-noise-pair",
    "too-many-looks",
]


class Verdict(StrEnum):
    """Of a segment, a variant or the whole. Nothing here says that two variants are the same."""

    within = "within"
    breached = "breached"
    too_few = "too few to tell"
    cannot_tell = "cannot tell"

    @property
    def exit_code(self) -> int:
        """Return 0 within, 1 breached, 3 otherwise."""
        return {Verdict.within: 0, Verdict.breached: 1}.get(self, 3)


WORST_FIRST: Final = (Verdict.breached, Verdict.cannot_tell, Verdict.too_few, Verdict.within)


class Rate(Part):
    """A share of answers, 0 to 1, with its interval by cluster."""

    value: float
    low: float
    high: float | None
    """None: too few clusters for an upper end."""


class Difference(Part):
    """Two variants on the same answers."""

    num_pairs: int
    num_clusters: int
    """Requests, conversations or documents: what is independent."""
    num_lost: int
    """The first passes, the second fails."""
    num_won: int
    loss: float
    """Share of answers lost less share won; half of it against each baseline where there are two."""
    low: float
    high: float
    high_error: float
    """How far chance of the method may have moved an end; nothing is decided within it. So is `low_error`."""
    low_error: float
    discordant_frac: float
    """Lost or won."""
    mcnemar_p: float | None
    """Of "any difference at all"; None where clusters hold several pairs. It decides nothing."""


class SegmentQuality(Part):
    """A variant in one segment."""

    segment: str
    verdict: Verdict
    reason_id: ReasonId
    reason: str
    margin: float
    floor: float
    min_pairs: int
    difference: Difference | None
    """None: there is no pair."""
    num_baselines: int
    """2: both runs of the baseline stand for it."""
    baseline_pass: Rate | None
    candidate_pass: Rate | None
    noise_discordant_frac: float | None
    """Between the two runs of the baseline, on the same pairs; None: not measured."""
    more_than_noise: bool | None
    """Whether the variant differs from the baseline in more answers than the baseline from itself."""
    q_value: float | None
    """Smallest false-discovery rate at which the loss is claimed to be beyond the margin."""
    pairs_missing: int | None
    """To tell with a chance of 80 %, if the shares stay as they are; None: told, or no number would do."""


class VariantQuality(Part):
    """A variant against the baseline."""

    variant: str
    verdict: Verdict
    num_answers: int
    num_paired: int
    num_unpaired: int
    """Answered by one of the two alone."""
    num_unjudged: int
    """Of the paired, by either, or by the second baseline."""
    num_same_prompt: int
    """Pairs whose prompts were compared and are the same."""
    segments: tuple[SegmentQuality, ...]


class Disagreement(Part):
    """An answer to look at."""

    variant: str
    id: str
    task: str
    repetition: int
    cluster: str | None
    kind: Literal["lost", "lost once", "won"]
    """`lost once`: one run of the baseline lost it too."""
    baseline: str
    noise: str | None
    candidate: str
    reason: str | None


class JoinedAnswers(Part):
    """Answers of the baseline whose requests are in a trace."""

    trace: str
    num_answers: int
    num_by_client_id: int
    num_by_external_id: int
    """By the front end's request id."""
    num_by_prompt: int
    num_ambiguous: int
    """Several requests have their id, so none was joined."""
    num_sampled: int
    """Joined to a request that capture sampled."""


class Leakage(Part):
    """Whether prompts of the evaluation are among those that scales were calibrated on."""

    artifact: str
    state: Literal["no shared prompt", "unknown"]
    """Shared prompts are an error and no state. Unknown is not the same as none."""
    reason_id: Literal["compared", "no-hashes", "other-key", "some-without-hash"]
    reason: str
    num_answers_unknown: int


class QualityComparison(Part):
    """The whole."""

    schema_version: str = QUALITY_SCHEMA_VERSION
    verdict: Verdict
    tables: tuple[str, ...]
    baseline: str
    noise: str | None
    policy_name: str | None
    policy_date: str | None
    policy_sha256: str | None
    confidence: float
    """Of the whole; each of several looks gets its share of the rest."""
    looks_planned: int
    looks_taken: int
    interval_method: str
    multiple_testing: str
    noise_pair: Difference | None
    """The second run of the baseline against the first; None: not measured."""
    joined: JoinedAnswers | None
    """None: no trace was given."""
    leakage: tuple[Leakage, ...]
    """Of each calibration that was named."""
    variants: tuple[VariantQuality, ...]
    logprobs: LogprobComparison | None
    """None: no scores were given. They explain, and decide nothing."""
    review: tuple[Disagreement, ...]
    """Lost answers first; at most 1,000 a variant."""
