"""Replay traces through candidates: `replay` is the main path, `ReplayRequest` what it is asked for."""

from kvtrace.candidates.artifact import ArtifactScales
from kvtrace.candidates.bf16 import Bf16
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.effective import EffectiveScales
from kvtrace.candidates.given import GivenScales
from kvtrace.candidates.kinds import standard_candidates
from kvtrace.candidates.online import OnlineScales
from kvtrace.candidates.setup import ServingSetup
from kvtrace.candidates.unit import UnitScales
from kvtrace.evaluation.replay import replay
from kvtrace.evaluation.request import ReplayRequest, standard_request

__all__ = [
    "ArtifactScales",
    "Bf16",
    "Candidate",
    "EffectiveScales",
    "GivenScales",
    "OnlineScales",
    "ReplayRequest",
    "ServingSetup",
    "UnitScales",
    "replay",
    "standard_candidates",
    "standard_request",
]
