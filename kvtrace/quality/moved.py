"""What a comparison of log-probabilities says."""

from __future__ import annotations

from typing import Literal

from kvtrace.quality.part import Part

Mode = Literal["forced", "free"]


class Beyond(Part):
    """A mean over requests, each the mean of its steps, of a variant and of the baseline's second run."""

    variant: float
    noise: float | None
    """None, as are the others: there is no second run, or no request is in both."""
    excess: float | None
    """Mean of the variant less that of the noise, request by request."""
    low: float | None
    """None, as is `high`: fewer than 30 requests are too few to tell."""
    high: float | None
    num_requests: int
    """In which the variant has it; the excess is over those that the noise has too."""


class Band(Part):
    """Steps or positions from `first` to `last`."""

    first: int
    last: int
    num_steps: int
    abs_delta: Beyond
    flip_frac: Beyond


class Logprobs(Part):
    """A variant beside the baseline, token by token."""

    variant: str
    mode: Mode
    """forced: the baseline's answers scored as prompts; it decides. free: each its own, until they differ."""
    num_requests: int
    num_steps: int
    delta: Beyond
    """Log-probability under the variant less under the baseline, in nats; below 0: less probable."""
    abs_delta: Beyond
    p99_abs_delta: float
    """Over steps."""
    noise_p99_abs_delta: float | None
    flip_frac: Beyond
    """Share of steps whose most probable token is another."""
    kl: Beyond | None
    """At least, in nats; None: the kept log-probabilities bound no step."""
    perplexity: float
    """exp of minus the mean log-probability over all steps; of the text that was scored, of no corpus."""
    baseline_perplexity: float
    by_step: tuple[Band, ...]
    """By octave of the generation step: 0, 1, 2-3, 4-7, …"""
    by_position: tuple[Band, ...]
    """By octave of the token's position, prompt included."""


class Identical(Part):
    """Answers still the same."""

    steps: int
    """After so many."""
    frac: float
    num_at_risk: int
    """Answers that were the same until then and had not ended."""


class Divergence(Part):
    """First differing step of free answers; answers that ended the same are censored there."""

    variant: str
    num_requests: int
    num_identical: int
    """To their end."""
    identical: tuple[Identical, ...]
    """After 1, 2, 4, 8, … steps."""
    median_step: int | None
    """Steps after which half have diverged; None: half never did while they went on."""
    low: int | None
    """None: fewer than 30 requests. High is None too where half of some draws never diverge."""
    high: int | None


class LogprobComparison(Part):
    """All variants."""

    scores: str
    baseline: str
    noise: str | None
    modes: tuple[Logprobs, ...]
    divergence: tuple[Divergence, ...]
