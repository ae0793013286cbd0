"""The cells of a trace: workload × phase × position octave × sampling_id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells that occur in one trace, ordered by workload, phase, octave and sampling_id."""

    workload: tuple[str, ...]
    phase: NDArray[np.int8]
    """[num_cells], `strata.PREFILL` or `strata.DECODE`."""
    octave: NDArray[np.int32]
    sampling_id: NDArray[np.int32]
    of_token: NDArray[np.int32]
    """[num_tokens], index of each token's cell."""

    def __len__(self) -> int:
        return len(self.workload)


def find_cells(trace: Trace) -> Cells:
    """Return the trace's cells and which token lies in which."""
    tokens = trace.tokens
    workloads = sorted({record.workload for record in trace.requests.values()})
    code_of_workload = {workload: code for code, workload in enumerate(workloads)}
    requests, request_index = np.unique(tokens.request, return_inverse=True)
    codes = np.array(
        [code_of_workload[trace.requests[n].workload] for n in requests.tolist()], dtype=np.int64
    )
    keys = np.stack([codes[request_index], tokens.phase, tokens.octave, tokens.sampling_id], axis=1)
    unique, of_token = np.unique(keys, axis=0, return_inverse=True)
    return Cells(
        workload=tuple(workloads[code] for code in unique[:, 0].tolist()),
        phase=unique[:, 1].astype(np.int8),
        octave=unique[:, 2].astype(np.int32),
        sampling_id=unique[:, 3].astype(np.int32),
        of_token=of_token.reshape(-1).astype(np.int32),
    )
