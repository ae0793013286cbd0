"""Replay traces through candidates: `replay` is the main path, `ReplayRequest` what it is asked for."""

from kvtrace.evaluation.replay import replay
from kvtrace.evaluation.request import ReplayRequest, standard_request

__all__ = ["ReplayRequest", "replay", "standard_request"]
