"""What a report says of harm, as values. None: not measured, or not told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict

Knowledge = Literal["residual", "projected", "heads"]
_DOCUMENTED: Final = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class CandidateHarm:
    """What one candidate does to attention, over all traffic or in one part of it."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    candidate: str
    kind: str
    workload: str | None
    """None: all."""
    position_from: int | None
    """First position of the octave; None: all."""
    step_from: int | None
    """First generated token of the octave, from 1; 0: in the prompt; None: all."""
    harm: float | None
    """R, summed over layers; None: no layer has an output but 0."""
    harm_low: float | None
    """95 % over requests; None: fewer than 8 of them."""
    harm_high: float | None
    ratio: float | None
    """Against fresh scales on the same queries."""
    ratio_low: float | None
    ratio_high: float | None
    drift: float | None
    """Calibration drift: what fresh scales in the same format would remove."""
    distortion: float | None
    """Misranking: what they would leave, the format's own."""
    k_share: float | None
    """Of the squared error, by K alone."""
    v_share: float | None
    q_share: float | None
    shrinkage: float | None
    """Σ ⟨o, ô⟩ / Σ ‖o‖² − 1: the systematic part of the error."""
    flipped_frac: float | None
    """Of queries: another key has the largest logit."""
    attention_kl: float | None
    """Nats, mean."""
    request_p99: float | None
    """Of single requests' harm."""
    request_max: float | None
    num_requests: int
    num_probes: int
    """Queries."""


@dataclass(frozen=True, slots=True)
class LayerHarm:
    """What one layer adds under one candidate."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    candidate: str
    layer: int
    harm: float | None
    harm_share: float | None
    """Of the candidate's harm."""
    k_share: float | None
    v_share: float | None
    query_head: int | None
    """With the largest error; None: there is none."""
    kv_head: int | None
    query_head_share: float | None
    """Of the layer's squared error."""


@dataclass(frozen=True, slots=True)
class Harm:
    """What all candidates do to attention."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    knowledge: Knowledge
    """residual: harm is a share of the residual stream. projected: relative to the attention's own output,
    through W_O. heads: the same without W_O, a mean over layers and query heads."""
    candidates: tuple[CandidateHarm, ...]
    layers: tuple[LayerHarm, ...]
    strata: tuple[CandidateHarm, ...]
    """By workload, then position, then generation step, of the scales that the answer is about."""
    front: tuple[str, ...]
    """Candidates that no other one beats both in harm and in bytes a token, fewest bytes first."""

    smallest: str | None = None
    """The candidate with the least harm of those that take no more bytes a token than FP8, where there are
    several."""
    no_larger: tuple[str, ...] = ()
    """Candidates that take no more bytes a token than FP8."""

    @property
    def smallest_harm(self) -> CandidateHarm | None:
        """Return that candidate's."""
        return self.of(self.smallest)

    def of(self, candidate: str | None) -> CandidateHarm | None:
        """Return one candidate's; None: it has none."""
        return next((one for one in self.candidates if one.candidate == candidate), None)
