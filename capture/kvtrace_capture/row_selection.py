"""Finds planned tokens in a batch by the cache slots they are written to. It needs torch and no vllm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Where planned tokens lie in one batch."""

    rows: torch.Tensor
    """[planned] int64 on the batch's device: the row of each token; any row where it was not found."""
    found: torch.Tensor
    """[planned] bool on the batch's device."""


def select_rows(slots: NDArray[np.int64], slot_mapping: torch.Tensor) -> RowSelection:
    """Return the rows of a batch whose slot is a planned one, in the plan's order.

    slots: [planned] int64, −1 for a token that no row has. slot_mapping: [num_tokens] int64, not empty.
    The result has the plan's length whatever is found, so nothing is read back from the device.

    >>> import numpy as np
    >>> selection = select_rows(np.array([34, 7, -1]), torch.tensor([-1, 7, 33, 34]))
    >>> selection.rows[:2].tolist(), selection.found.tolist()
    ([3, 1], [True, True, False])
    """
    wanted = torch.from_numpy(slots)
    if slot_mapping.is_cuda:
        wanted = wanted.pin_memory().to(slot_mapping.device, non_blocking=True)
    ordered, order = torch.sort(slot_mapping)
    at = torch.searchsorted(ordered, wanted).clamp_(max=len(ordered) - 1)
    return RowSelection(order[at], (ordered[at] == wanted) & (wanted >= 0))
