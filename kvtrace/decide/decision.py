"""What `kvtrace decide` says: one word, why, what is missing, and what to try next."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from kvtrace.gate.outcome import Verdict as CheckVerdict  # noqa: TC001 -- pydantic reads the annotations
from kvtrace.report.harm.model import Knowledge  # noqa: TC001
from kvtrace.serving.report import Gain, LengthDifference, RunGoodput, VariantGoodput  # noqa: TC001

DECISION_SCHEMA_VERSION: Final = "1.1"


class Word(StrEnum):
    """The decision, the first that fits, from the top."""

    invalid = "invalid cell"
    roll_back = "roll back"
    collect_more = "collect more"
    retain = "retain"
    promote = "promote"

    @property
    def exit_code(self) -> int:
        """Return 0 promote, 1 roll back, 2 invalid cell, 3 collect more, 4 retain."""
        return {Word.promote: 0, Word.roll_back: 1, Word.invalid: 2, Word.collect_more: 3, Word.retain: 4}[
            self
        ]


ReasonId = Literal[
    # invalid cell
    "unsupported-cell", "held-constant-differs", "silent-fallback", "same-cache-dtype", "closed-loop",
    "other-interval",
    # roll back
    "answers-lost", "goodput-lost", "rejected", "corrupted", "activations-breach",
    # collect more
    "quality-not-measured", "quality-other-policy", "check-other-policy", "quality-too-few",
    "runs-too-few", "class-not-measured",
    "unjudged", "restarted", "gain-not-told", "way-back-not-measured",
    # retain
    "no-gain", "no-way-back",
    # promote
    "answers-within", "goodput-gained", "fits-back", "limit-to-set",
]  # fmt: skip

NextId = Literal[
    "calibrate", "exclude-layers", "smaller-weights", "raise-admission", "offer-more", "profile-decode",
    "measure",
]  # fmt: skip

Cell = Literal["B0", "C1", "C2", "C3"]
"""B0: the approved precision. C1: FP8 under default scales. C2: calibrated. C3: some layers left out."""


class Part(BaseModel):
    """A part of a decision. None anywhere: not measured."""

    model_config = ConfigDict(frozen=True)


class Reason(Part):
    """One thing that was found; its kind is that of the decision it stands for."""

    id: ReasonId
    word: Word
    of: str | None = None
    """The segment or class."""
    text: str
    missing: int | None = None
    """Pairs or runs that still lack; None: no number."""


class Next(Part):
    """The next experiment, named from the failure."""

    id: NextId
    text: str


class Evidence(Part):
    """A file that the decision rests on."""

    kind: Literal["serving", "quality", "capacity", "check", "report", "policy"]
    file: str
    sha256: str


class CellPart(Part):
    """Which cell of the comparison the candidate is, and what was held constant."""

    candidate: Cell | None
    """None: no manifest says what it is."""
    held: dict[str, str]
    """Fields that both manifests have, and alike."""
    differs: dict[str, tuple[str, str]]
    """Baseline's and candidate's."""
    not_said: tuple[str, ...]
    """Fields that a manifest lacks."""
    is_bundle: bool
    """The backend, kernels or image differ too: what is compared is a bundle."""


class WayBack(Part):
    """Room for the baseline."""

    basis: str
    limit: int
    fits: bool
    limit_to_set: int
    candidate_tokens: int | None
    baseline_tokens: int | None


class Quality(Part):
    """A segment of answers, as `kvtrace quality compare` found it."""

    segment: str
    verdict: str
    loss: float | None
    low: float | None
    high: float | None
    margin: float
    num_pairs: int | None
    num_lost: int | None = None
    """Since 1.1, as the two below."""
    num_won: int | None = None
    pairs_missing: int | None = None


class Noise(Part):
    """The baseline's second run against its first."""

    loss: float
    low: float
    high: float
    num_pairs: int
    num_lost: int
    num_won: int


class Clip(Part):
    """One limit of `kvtrace check` in one segment."""

    segment: str
    limit: str
    bound: float
    is_minimum: bool
    verdict: CheckVerdict
    num_heads: int
    num_breached: int
    head: str | None
    """Furthest on the wrong side; None: not told, as is its value."""
    value: float | None


class HarmPart(Part):
    """What `kvtrace report` found the candidate to do to attention."""

    knowledge: Knowledge
    harm: float | None
    low: float | None
    high: float | None
    drift: float | None
    """What fresh scales would remove."""
    misranking: float | None
    """What they would leave."""
    flipped_frac: float | None
    """Of queries: another key has the largest logit."""
    num_requests: int
    num_probes: int


class Decision(Part):
    """The whole."""

    schema_version: str = DECISION_SCHEMA_VERSION
    word: Word
    baseline: str
    candidate: str
    policy_name: str
    policy_date: str
    policy_sha256: str
    confidence: float
    reasons: tuple[Reason, ...]
    """Those of the decision first, then all others."""
    next: tuple[Next, ...]
    cell: CellPart
    quality: tuple[Quality, ...]
    classes: tuple[Gain, ...]
    all: Gain | None
    output_tokens: LengthDifference | None
    variants: tuple[VariantGoodput, ...]
    way_back: WayBack | None
    not_measured: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    noise: Noise | None = None
    """None: not measured. Since 1.1, as all below."""
    runs: tuple[RunGoodput, ...] = ()
    """Of both variants at the rate that is decided on."""
    currency: str | None = None
    clips: tuple[Clip, ...] = ()
    """Empty: not measured."""
    harm: HarmPart | None = None
