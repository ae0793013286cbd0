"""A step whose rows are copied to the host. It needs torch and no vllm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

    from kvtrace_capture.host_copy import HostCopy
    from kvtrace_capture.step_plan import PlannedRows, StepPlan

FOUND: Final = ("found", 0)
"""Where a step's mask of found rows travels, beside its slabs of K and V and of queries."""


@dataclass(frozen=True, slots=True)
class StepOnItsWay:
    """One step between the engine's thread and the writers."""

    plan: StepPlan
    planned: PlannedRows
    copy: HostCopy[tuple[str, int]]

    def slabs(self, of: str) -> dict[int, torch.Tensor]:
        """Return the slabs of K and V ("kv") or of queries ("q"), on the host."""
        return {number: slab for (kind, number), slab in self.copy.tensors.items() if kind == of}
