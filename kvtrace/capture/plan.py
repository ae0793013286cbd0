"""What a capture costs in bytes, and how many requests an answer takes, before anything is switched on."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.sample_size import design_effect, requests_for_margin, requests_without_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.capture.model_shape import ModelShape

SECONDS_PER_DAY: Final = 86_400
ROW_BYTES: Final = 20
"""Request, position and sampling_id of a row (int32) and its step (int64)."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be told of a stratum: a fraction of one head's vectors, and how exactly."""

    fraction: float
    margin: float
    correlation: float
    """Between the events of two vectors of one request, 0 to 1."""
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """One stride, what it stores and what it tells."""

    position_stride: int
    bytes_per_day: int
    vectors_per_request: float
    design_effect: float
    requests_for_margin: int
    bytes_for_margin: int
    hours_for_margin: float
    """Until so many requests were sampled, were all traffic one stratum."""


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What `kvtrace capture plan` says; bytes are those of K and V before compression, over all ranks."""

    shape: ModelShape
    bytes_per_token: int
    tokens_per_second: float
    tokens_per_request: float
    request_fraction: float
    question: Question
    requests_without_event: int | None
    """So many without one event put the upper end of the interval at fraction + margin, at any stride."""
    samplings: tuple[SamplingPlan, ...]


def plan_capture(
    shape: ModelShape,
    question: Question,
    *,
    strides: Sequence[int],
    tokens_per_second: float,
    tokens_per_request: float,
    request_fraction: float = 1.0,
) -> CapturePlan:
    """Return bytes and requests for each stride.

    tokens_per_second: prompt and output, of one replica. Raises InputError: the question has no answer.
    """
    _check(question)
    for name, value in (("--rate", tokens_per_second), ("--tokens-per-request", tokens_per_request)):
        if not 0 < value < 1e15:
            raise InputError(f"{name} is {value:g}, expected a number above 0")
    row_bytes = shape.bytes_per_token + ROW_BYTES
    samplings = []
    for stride in strides:
        vectors = max(tokens_per_request / stride, 1.0)
        needed = requests_for_margin(
            question.fraction,
            question.margin,
            vectors_per_request=vectors,
            correlation=question.correlation,
            confidence=question.confidence,
        )
        sampled_per_second = tokens_per_second / tokens_per_request * request_fraction
        samplings.append(
            SamplingPlan(
                position_stride=stride,
                bytes_per_day=ceil(
                    SECONDS_PER_DAY * tokens_per_second * request_fraction / stride * row_bytes
                ),
                vectors_per_request=vectors,
                design_effect=design_effect(vectors, question.correlation),
                requests_for_margin=needed,
                bytes_for_margin=ceil(needed * vectors * row_bytes),
                hours_for_margin=needed / sampled_per_second / 3600,
            )
        )
    return CapturePlan(
        shape=shape,
        bytes_per_token=shape.bytes_per_token,
        tokens_per_second=tokens_per_second,
        tokens_per_request=tokens_per_request,
        request_fraction=request_fraction,
        question=question,
        requests_without_event=requests_without_event(
            question.fraction + question.margin, confidence=question.confidence
        ),
        samplings=tuple(samplings),
    )


def _check(question: Question) -> None:
    for name, value in (("--fraction", question.fraction), ("--confidence", question.confidence)):
        if not 0 < value < 1:
            raise InputError(f"{name} is {value:g}, expected more than 0 and less than 1")
    if not 1e-9 < question.margin < 1 - question.fraction:
        raise InputError(
            f"--margin is {question.margin:g}, expected more than 1e-9 and less than 1 − the fraction, "
            f"{1 - question.fraction:g}"
        )
    if not 0 <= question.correlation <= 1:
        raise InputError(f"--correlation is {question.correlation:g}, expected 0 to 1")
