"""Every error a user of kvtrace can meet.

KVTraceError
├── InputError                 exit 2: an input or the command line cannot be used
│   ├── NotATraceError         the path is no trace, or no run
│   ├── SchemaVersionError     written by a newer kvtrace
│   ├── IntegrityError         a file is missing, cut, differs from its checksum, or cannot be true
│   ├── EmptyTraceError        a sound trace without a committed row
│   ├── ArtifactError          a scale artifact cannot be read at all
│   ├── NoValidCandidateError  every candidate asked for is invalid
│   ├── OutputExistsError      the output is there already and --force was not given
│   ├── DeviceError            the device asked for is not there
│   ├── QueryError             no such query, or the SQL is refused or wrong
│   ├── OutcomesError          a file of judged answers or served requests cannot be read, or does not pair
│   ├── PolicyError            a policy cannot be read, or holds a key or limit that cannot be used
│   ├── ComparisonError        runs differ in something that a comparison must hold constant
│   ├── VLLMNotFoundError      no Python with a vLLM and the capture plug-in that fit
│   ├── UnsupportedAttentionError  a layer's attention cannot be replayed from what the trace holds
│   ├── CaptureError           vLLM was started for a capture and ended without a trace
│   └── MissingExtraError      the command needs an extra that is not installed
├── ReplayMismatchError        --verify: profile and element-wise replay differ, a bug of kvtrace
└── InvalidCandidateError      one candidate cannot be used; the others go on

The text says what is wrong, what was expected and what to do, and names the file.
"""

from typing import Literal


class KVTraceError(Exception):
    """Base of all errors that kvtrace raises on purpose."""


class InputError(KVTraceError):
    """An input or the command line cannot be used; the command ends with exit code 2."""


class NotATraceError(InputError):
    """The path is not a kvtrace trace or run."""


class SchemaVersionError(InputError):
    """The file was written with a schema this version cannot read."""


class IntegrityError(InputError):
    """A file of a trace or run is missing, cut, differs from its checksum, or holds what it cannot hold."""


class EmptyTraceError(InputError):
    """The trace is sound but holds no committed row."""


class ArtifactError(InputError):
    """A scale artifact cannot be read at all."""


class NoValidCandidateError(InputError):
    """Every candidate asked for is invalid, so there is nothing to report."""


class OutputExistsError(InputError):
    """The output exists and would be overwritten."""


class DeviceError(InputError):
    """The device asked for is not available."""


class QueryError(InputError):
    """The query does not exist, or its SQL is refused or wrong."""


class PolicyError(InputError):
    """A policy file cannot be read, or holds a key or limit that cannot be used."""


class OutcomesError(InputError):
    """A file of judged answers or served requests cannot be read, or cannot be paired."""


class ComparisonError(InputError):
    """The runs differ in something that a comparison must hold constant."""


class VLLMNotFoundError(InputError):
    """There is no Python with a vLLM and the capture plug-in that fit."""


class UnsupportedAttentionError(InputError):
    """A layer's attention depends on what the trace does not hold, so it is not replayed."""


class CaptureError(InputError):
    """vLLM was started for a capture and ended without a trace."""


class MissingExtraError(InputError):
    """The command needs an optional dependency that is not installed."""


class ReplayMismatchError(KVTraceError):
    """Two ways to compute the same sums differ: a bug of kvtrace."""


InvalidReason = Literal[
    "unknown-engine",  # no rules or numerics of this name
    "impossible-setup",  # the engine cannot run the backend or write the format
    "unsplittable-heads",  # KV heads that do not split over the ranks
    "per-head-refused",  # the backend takes no scale per head, and the engine does not start
    "wrong-model",  # layers or heads differ from the model's
    "engine-crash",  # the engine would not start with the artifact, or would die
    "other-format",  # the scales are of another number format than FP8
    "missing-scale",  # a layer or head has none
    "unusable-value",  # 0, negative, NaN, inf or too large
    "no-fp8",
    "head-size",  # no captured engine had an FP8 cache
]


class InvalidCandidateError(KVTraceError):
    """One candidate cannot be used; it is reported as invalid with this reason."""

    def __init__(self, text: str, reason: InvalidReason) -> None:
        super().__init__(text)
        self.reason: InvalidReason = reason
