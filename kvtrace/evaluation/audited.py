"""What an audit of each candidate's artifact finds, over the counts that the replay has anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.calibration.magnitudes import Group, Magnitudes, counted
from kvtrace.candidates.artifact import ArtifactScales
from kvtrace.errors import InvalidCandidateError
from kvtrace.findings.artifact.audit import audit, audit_context, unit_of
from kvtrace.findings.artifact.observed import Observed, observe, per_unit
from kvtrace.findings.artifact.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvtrace.candidates.candidate import Candidate
    from kvtrace.findings.finding import Finding
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.profile.store import StoredProfile
    from kvtrace.trace.reader import Trace

_AUDITED_FORMAT = "e4m3fn"
"""The rules that look at values assume e4m3fn's range."""


@dataclass(frozen=True, slots=True)
class ArtifactFindings:
    """What an audit found in one candidate's artifact on one trace, errors first."""

    candidate: str
    findings: tuple[Finding, ...]


def audit_artifacts(
    trace: Trace, candidates: Sequence[Candidate], profile: StoredProfile | None
) -> Iterator[ArtifactFindings]:
    """Yield what the artifacts' audits find on one trace. profile: of the trace; None: its tensors are read.

    An artifact whose candidate is invalid is audited too: the findings say what is wrong with it.
    """
    observed: Observed | None = None
    for one in candidates:
        if not isinstance(one, ArtifactScales):
            continue
        if one.format == _AUDITED_FORMAT and observed is None:
            observed = observe(trace, "attn_head") if profile is None else _from_profile(trace, profile)
        yield ArtifactFindings(one.name, tuple(_findings(trace, one, observed)))


def _findings(trace: Trace, one: ArtifactScales, observed: Observed | None) -> list[Finding]:
    if observed is not None:
        observed = observed.of_granularity(unit_of(one.artifact), one.setup.engine)
    try:
        context = audit_context(
            one.artifact,
            trace,
            engine=one.engine,
            backend=one.setup.backend,
            tp=one.setup.tp,
            weights=one.weights,
            observed=observed if one.format == _AUDITED_FORMAT else None,
            skip_layers=one.setup.skip_layers,
        )
    except InvalidCandidateError:
        return []  # heads that do not split over the ranks: the candidate's reason says so
    return audit(context, [rule for rule in RULES if rule.in_run != "left out"])


@dataclass(frozen=True)
class _ProfiledTrace(Observed):
    """The same over a profile: nothing of the tensors is read."""

    profile: StoredProfile | None = None

    def units_beyond(self, length: int) -> dict[Group, Magnitudes]:
        """Return the largest magnitude of each unit at positions from `length` on; its counts are not known.

        A profile counts by octave; the vectors' maxima are per token.
        """
        assert self.profile is not None, "set by _from_profile"
        is_beyond = self.trace.tokens.position >= length
        if not is_beyond.any():
            return {}
        found = {group: largest for t in self.profile.tensors() for group, largest in _largest(t, is_beyond)}
        return per_unit(found, self.granularity)


def _from_profile(trace: Trace, profile: StoredProfile) -> Observed:
    groups = {group: counts for tensor in profile.tensors() for group, counts in _magnitudes(tensor)}
    return _ProfiledTrace(trace, "attn_head", "vllm-cuda", groups, profile=profile)


def _magnitudes(tensor: TensorProfile) -> Iterator[tuple[Group, Magnitudes]]:
    """Yield the counts of every head of one layer, K or V, over all cells."""
    record, num_cells = tensor.record, tensor.num_cells
    for axis, head in enumerate(record.kv_heads):
        begin, end = tensor.start[axis * num_cells], tensor.start[(axis + 1) * num_cells]
        counts = np.bincount(tensor.code[begin:end], weights=tensor.count[begin:end])
        codes = np.flatnonzero(counts)
        own = counted(codes, counts[codes].astype(np.int64), record.dtype)
        yield (record.layer, head, record.tensor), own


def _largest(tensor: TensorProfile, chosen: NDArray[np.bool_]) -> Iterator[tuple[Group, Magnitudes]]:
    codes = tensor.absmax_code[chosen].max(axis=0)
    for axis, head in enumerate(tensor.record.kv_heads):
        if codes[axis] >= 0:
            code = codes[axis : axis + 1].astype(np.int64)
            own = counted(code, np.ones(1, np.int64), tensor.record.dtype)
            yield (tensor.record.layer, head, tensor.record.tensor), own
