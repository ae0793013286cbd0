"""Replay traces through candidates: `replay` is the main path, `candidate` says what can be compared."""

from kvtrace.candidates.candidate import (
    Candidate,
    EngineSetup,
    bf16,
    compared_with,
    effective,
    from_artifact,
    from_scales,
    online,
    standard_candidates,
    unit,
)
from kvtrace.evaluation.replay import replay

__all__ = [
    "Candidate",
    "EngineSetup",
    "bf16",
    "compared_with",
    "effective",
    "from_artifact",
    "from_scales",
    "online",
    "replay",
    "standard_candidates",
    "unit",
]
