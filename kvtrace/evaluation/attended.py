"""What candidates do to attention at the captured queries: errors added up by head, request and place."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.errors import UnsupportedAttentionError
from kvtrace.plain_text import plain
from kvtrace.trace.queries import can_be_attended
from kvtrace.trace.strata import phase_code, position_octave, step_octave

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kvtrace.attention.trace_replay import LayerErrors
    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.trace.queries import AttentionLayer
    from kvtrace.trace.reader import Trace

_log = logging.getLogger(__name__)
BY_HEAD: Final = ("sum_do2", "sum_o_do", "sum_do2_k", "sum_do2_v", "sum_do2_q", "sum_kl", "sum_fisher",
                  "num_flips", "top_overlap")  # fmt: skip
"""Of `AttentionErrors`, by candidate and query head."""


_SHORT_CONTEXT: Final = 1024
"""Tokens of the longest request up to which one of PyTorch's threads works: several wait for each other
longer than they work. A report of the bundled trace takes 13.8 s of CPU with one, 31.3 with two, on two busy
cores."""


@dataclass(frozen=True, slots=True)
class AttentionSums:
    """One request's errors in one layer, added up over the queries of one place: phase and octaves.

    sums: by name, [candidate, place, query_head] float64. Arrays without a candidate are [place, …].
    """

    layer: AttentionLayer
    request: int
    is_dense: bool
    candidates: tuple[str, ...]
    phase: NDArray[np.int8]
    position_octave: NDArray[np.int32]
    step_octave: NDArray[np.int32]
    num_probes: NDArray[np.int64]
    sum_o2: NDArray[np.float64]
    """[place, query_head]."""
    sums: dict[str, NDArray[np.float64]]
    projected: NDArray[np.float64] | None
    """Σ ‖W_O Δo‖², [candidate, place]; None without W_O."""
    projected_output: NDArray[np.float64] | None
    """Σ ‖W_O o‖², [place]."""


def attention_sums(
    trace: Trace, applied: Sequence[AppliedScales], device: str, checkpoint: Path | None
) -> Iterator[AttentionSums]:
    """Yield the sums of every layer and request with queries; nothing where the trace has none.

    checkpoint: where W_O is read from; None: errors of heads alone are told. A trace whose attention cannot
    be replayed has none, and a warning says which layer and why.
    Raises ArtifactError: the checkpoint cannot be used. IntegrityError: a chunk is missing or damaged.
    """
    if not can_be_attended(trace):
        return
    from kvtrace.attention.projection import find_projections  # torch
    from kvtrace.attention.trace_replay import replay_attention
    from kvtrace.trace.queries import CapturedQueries

    projections = find_projections(checkpoint, trace.cache_layers) if checkpoint else None
    layers = CapturedQueries(trace).layers
    names = tuple(one.candidate.name for one in applied)
    try:
        with _one_thread_for_short_contexts(trace):
            for part in replay_attention(trace, applied, device=device, projections=projections):
                yield _added_up(trace, names, layers[part.layer], part)
    except UnsupportedAttentionError as error:  # before anything is yielded
        _log.warning("%s: harm is not measured: %s", plain(trace.name, 200), plain(str(error), 1_000))


@contextmanager
def _one_thread_for_short_contexts(trace: Trace) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if max((one.computed_tokens for one in trace.requests.values()), default=0) <= _SHORT_CONTEXT:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _added_up(
    trace: Trace, candidates: tuple[str, ...], layer: AttentionLayer, part: LayerErrors
) -> AttentionSums:
    errors, prompt = part.errors, trace.requests[part.request].prompt_tokens
    places = np.stack(
        [
            phase_code(errors.position, np.full(len(errors.position), prompt)),
            position_octave(errors.position),
            step_octave(errors.position, prompt),
        ]
    )
    order = np.lexsort(places)
    places = places[:, order]
    is_first = np.append(True, (np.diff(places) != 0).any(axis=0))
    starts = np.flatnonzero(is_first)

    def summed(values: NDArray[Any], axis: int) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.add.reduceat(np.take(values, order, axis), starts, axis)
        return sums

    projected, output = errors.projected, errors.projected_output
    return AttentionSums(
        layer=layer,
        request=part.request,
        is_dense=part.is_dense,
        candidates=candidates,
        phase=places[0, starts].astype(np.int8),
        position_octave=places[1, starts].astype(np.int32),
        step_octave=places[2, starts].astype(np.int32),
        num_probes=np.diff(np.append(starts, len(order))),
        sum_o2=summed(errors.sum_o2, 0),
        sums={name: summed(getattr(errors, name), 1) for name in BY_HEAD},
        projected=None if projected is None else summed(projected, 1),
        projected_output=None if output is None else summed(output, 0),
    )
