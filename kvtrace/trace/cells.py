"""The cells of a trace: workload × phase × position octave × sampling_id, and those that intervals need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.reader import Trace


NUM_REQUEST_GROUPS: Final = 16
"""A power of two. Few enough for groups of some requests each, enough for an interval (`stats.jackknife`)."""
MAX_CELLS: Final = 1 << 14
"""Bounds the memory of a replay: sums are held for every cell, KV head and candidate of a layer."""
_GOLDEN: Final = 2_654_435_769
"""2^32 divided by the golden ratio: Knuth's multiplicative hash (The Art of Computer Programming 3, 6.4)."""


@dataclass(frozen=True, slots=True)
class Cells:
    """A partition of one trace's tokens: the cells that occur, ordered by what they are of."""

    workload: tuple[str, ...]
    phase: NDArray[np.int8]
    """[num_cells], `strata.PREFILL` or `strata.DECODE`."""
    octave: NDArray[np.int32]
    """[num_cells]; -1 where a cell holds any position."""
    sampling_id: NDArray[np.int32]
    of_token: NDArray[np.int32]
    """[num_tokens], index of each token's cell."""
    request_group: NDArray[np.int32] | None = None
    """[num_cells]; None where a cell holds requests of every group."""

    def __len__(self) -> int:
        return len(self.workload)


def find_cells(trace: Trace) -> Cells:
    """Return the cells workload × phase × position octave × sampling_id, and which token lies in which."""
    tokens = trace.tokens
    workloads, workload = _workloads(trace)
    unique, of_token = _numbered(trace, workload, tokens.phase, tokens.octave, tokens.sampling_id)
    return Cells(
        workload=tuple(workloads[code] for code in unique[:, 0].tolist()),
        phase=unique[:, 1].astype(np.int8),
        octave=unique[:, 2].astype(np.int32),
        sampling_id=unique[:, 3].astype(np.int32),
        of_token=of_token,
    )


def find_group_cells(trace: Trace) -> Cells:
    """Return the cells workload × phase × sampling_id × request group, any position: whole requests apart."""
    tokens = trace.tokens
    workloads, workload = _workloads(trace)
    group = request_group(tokens.request)
    unique, of_token = _numbered(trace, workload, tokens.phase, tokens.sampling_id, group)
    return Cells(
        workload=tuple(workloads[code] for code in unique[:, 0].tolist()),
        phase=unique[:, 1].astype(np.int8),
        octave=np.full(len(unique), -1, np.int32),
        sampling_id=unique[:, 2].astype(np.int32),
        of_token=of_token,
        request_group=unique[:, 3].astype(np.int32),
    )


def request_group(request: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return each request's group, 0 to 15: of its number alone, so the same in every run of its trace.

    The hash spreads any arithmetic progression of numbers evenly, such as every fourth request.

    >>> request_group(np.array([0, 1, 2, 3, 4, 1_000_000])).tolist()
    [0, 9, 3, 13, 7, 15]
    """
    hashed = request.astype(np.uint64) * np.uint64(_GOLDEN) % np.uint64(1 << 32)
    group: NDArray[np.int32] = (hashed * np.uint64(NUM_REQUEST_GROUPS) >> np.uint64(32)).astype(np.int32)
    return group


def _workloads(trace: Trace) -> tuple[list[str], NDArray[np.int64]]:
    """Return the workloads, sorted, and each token's place among them."""
    workloads = sorted({record.workload for record in trace.requests.values()})
    code_of_workload = {workload: code for code, workload in enumerate(workloads)}
    requests, request_index = np.unique(trace.tokens.request, return_inverse=True)
    codes = np.array(
        [code_of_workload[trace.requests[n].workload] for n in requests.tolist()], dtype=np.int64
    )
    return workloads, codes[request_index]


def _numbered(trace: Trace, *columns: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the distinct combinations, sorted, [combination, column], and each token's place among them."""
    unique, of_token = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    if len(unique) > MAX_CELLS:
        raise InputError(
            f"{trace.path}: has {len(unique):,} cells (workload × phase × octave × sampling_id), more than "
            f"{MAX_CELLS:,}: its requests have too many workloads or sampling rules to count each by itself"
        )
    return unique.astype(np.int64), of_token.reshape(-1).astype(np.int32)
