"""Online policies: their errors need the values themselves, so they take an element-wise pass of their own.

Two traces with equal counts and equal vector maxima can have different per-token errors: no profile holds
these. The sums are kept beside the profile, so that the pass is made once per trace and policy.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvtrace.evaluation.direct import as_tensor
from kvtrace.evaluation.reading import read_blocks
from kvtrace.files.regular import read_regular
from kvtrace.files.replaced import replace_file
from kvtrace.numerics.elementwise import online_round_trip
from kvtrace.profile.own_seal import is_own, own_seal
from kvtrace.profile.ready import require_tensors
from kvtrace.trace.format import Record, seal, unseal
from kvtrace.trace.profile_format import PROFILE_DIRECTORY

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from kvtrace.evaluation.reading import Progress
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.numerics.online import OnlinePolicy
    from kvtrace.trace.cells import Cells
    from kvtrace.trace.reader import Trace

_VALUES_AT_ONCE = 1 << 15
_PURPOSE = "online sums"


class TensorOnlineSums(Record):
    """One layer, K or V. Both lists are [cell][kv_head]."""

    layer: int
    tensor: str
    num_flushed: list[list[int]]
    sum_sq_error: list[list[float]]


class OnlineSums(Record):
    """`profile/online-POLICY.json`: what one policy does to a trace."""

    schema_version: str = "1.0"
    trace_sha256: str
    policy: str
    tensors: tuple[TensorOnlineSums, ...]
    seal: str | None = None
    """By the key of the user who summed: without it, the sums are made again."""

    def fill(self, sums: TensorSums, number: int) -> None:
        """Put the policy's sums in the place of candidate `number`. Nothing is out of range or clipped."""
        own = next(t for t in self.tensors if (t.layer, t.tensor) == (sums.layer, sums.tensor))
        sums.errors.num_flushed[number] = own.num_flushed
        sums.errors.sum_sq_error[number] = own.sum_sq_error


def online_sums(
    trace: Trace,
    cells: Cells,
    policy: OnlinePolicy,
    device: str,
    progress: Progress | None = None,
) -> tuple[OnlineSums, bool]:
    """Return the policy's sums, those kept in the trace, else made now, and whether tensors were read.

    Raises IntegrityError: a chunk is missing or damaged. InputError: the tensors are not there any more.
    """
    path = trace.path / PROFILE_DIRECTORY / f"online-{policy.name}.json"
    with contextlib.suppress(OSError, ValueError):
        kept = unseal(read_regular(path), OnlineSums)
        if (kept.trace_sha256, kept.policy) == (trace.digest, policy.name) and is_own(kept, _PURPOSE):
            return kept, False
    require_tensors(trace, f"the first replay of {policy.name}")
    made = OnlineSums(
        trace_sha256=trace.digest,
        policy=policy.name,
        tensors=_replay(trace, cells, policy, device, progress),
    )
    made = made.model_copy(update={"seal": own_seal(made, _PURPOSE)})
    if path.parent.is_dir() and not path.parent.is_symlink() and os.access(path.parent, os.W_OK):
        with contextlib.suppress(OSError):  # a full disk: they are made again the next time
            replace_file(path, seal(made) + "\n")
    return made, True


def _replay(
    trace: Trace, cells: Cells, policy: OnlinePolicy, device: str, progress: Progress | None
) -> tuple[TensorOnlineSums, ...]:
    flushed: dict[tuple[int, str], NDArray[Any]] = {}
    errors: dict[tuple[int, str], NDArray[Any]] = {}
    for block in read_blocks(trace, progress):
        layer = trace.layers[block.layer.index]
        key, shape = (layer.index, block.tensor), (len(cells), len(layer.kv_heads))
        flushed.setdefault(key, np.zeros(shape, np.int64))
        errors.setdefault(key, np.zeros(shape))
        heads = np.array([layer.kv_heads.index(head) for head in block.kv_heads])
        values = as_tensor(block, device)
        at_once = max(1, _VALUES_AT_ONCE // values[0].numel()) if len(values) else 1
        for start in range(0, len(values), at_once):
            x = values[start : start + at_once]
            restored = online_round_trip(x, policy)
            finite = torch.isfinite(x)
            squares = (x.double() - restored).square_().masked_fill_(~finite, 0).sum(-1)
            lost = ((restored == 0) & (x != 0) & finite).sum(-1)
            cell = cells.of_token[block.row[start : start + at_once]].astype(np.int64)
            place = np.broadcast_arrays(cell[:, None], heads[None, :])
            np.add.at(errors[key], tuple(place), squares.cpu().numpy())
            np.add.at(flushed[key], tuple(place), lost.cpu().numpy())
    return tuple(
        TensorOnlineSums(
            layer=layer,
            tensor=tensor,
            num_flushed=flushed[layer, tensor].tolist(),
            sum_sq_error=errors[layer, tensor].tolist(),
        )
        for layer, tensor in sorted(errors)
    )
