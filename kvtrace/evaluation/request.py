"""What is replayed, through which candidates, and how: one value, made by commands and notebooks alike."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvtrace.candidates import FreshScales, standard_candidates
from kvtrace.candidates.captured import default_setup
from kvtrace.errors import InputError
from kvtrace.profile.build import DEFAULT_MEMORY_BYTES
from kvtrace.scales import load_artifact
from kvtrace.trace.several import refuse_same_capture, rows_left_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvtrace.candidates import Candidate, ServingSetup
    from kvtrace.runs.manifest import SuppliedManifest
    from kvtrace.runs.record import PolicyStamp
    from kvtrace.trace.reader import Trace

Method = Literal["profile", "direct", "verify"]
"""profile: over exact counts; direct: element by element; verify: both, compared."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Raises InputError: no trace is given, two are of one capture, or two candidates share a name."""

    traces: Sequence[Trace]
    candidates: Sequence[Candidate]
    method: Method = "profile"
    """A trace with float32 layers is replayed element by element whatever the method; run.json says so."""
    intervals: bool = False
    """Whether to sum by group of requests too, which intervals of value-level ratios need; the first time
    it reads the tensors once more."""
    device: str | None = None
    """cpu, cuda or cuda:N; None: CUDA if there is one."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """For unpacked tensors while a profile is made."""
    manifest: SuppliedManifest | None = None
    """Fields that the traces do not hold."""
    checkpoint: Path | None = None
    """The model's, for W_O: what errors of heads do to the residual stream. None: told by head alone."""
    attention: bool = True
    """Whether to replay attention where the traces hold queries."""
    policy: PolicyStamp | None = None
    """The limits that the run will be held against."""

    def __post_init__(self) -> None:
        _require_traces(self.traces)
        refuse_same_capture(self.traces)
        for name, number in Counter(candidate.name for candidate in self.candidates).items():
            if number > 1:
                raise InputError(f"{number} candidates are called {name!r}; each needs a name of its own")


def standard_request(
    traces: Sequence[Trace],
    scales: Iterable[Path | str] = (),
    setup: ServingSetup | None = None,
    *,
    artifact_format: str | None = None,
    cache_dtypes: Iterable[str] = (),
    against: Path | None = None,
    checkpoint: Path | None = None,
    sweep: bool = False,
    attention: bool = True,
) -> ReplayRequest:
    """Return the request to replay the traces through `standard_candidates`, for the rest as by default.

    scales: checkpoints or scale files, read as `artifact_format`; None: as their content tells. sweep: with
    static scales by the rules of `swept_scales` as well, for which the tensors are read once more.
    attention: False leaves out what candidates do to attention, and fresh scales with it.
    Raises the errors of `standard_candidates`, `load_artifact` and `ReplayRequest`.
    """
    _require_traces(traces)
    for line in rows_left_out(traces):
        _log.warning("%s", line)
    artifacts = [load_artifact(path, artifact_format) for path in scales]
    candidates = standard_candidates(traces, artifacts, setup, cache_dtypes, against=against)
    if not attention:
        candidates = [one for one in candidates if not isinstance(one, FreshScales)]
    if sweep:
        from kvtrace.evaluation.swept import swept_scales  # torch

        candidates += swept_scales(traces, setup or default_setup(traces))
    return ReplayRequest(traces, candidates, checkpoint=checkpoint, attention=attention)


def _require_traces(traces: Sequence[Trace]) -> None:
    if not traces:
        raise InputError("no trace was given; expected one or more that kvtrace.open_trace returned")
