"""The bytes that a rank may still store under the sampling rules in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace_capture.step_plan import StepPlan


class ByteBudget:
    """What is left of `StepPlan.byte_budget`; new rules bring a new one."""

    def __init__(self) -> None:
        self._sampling_id = -1
        self._bytes_left: int | None = None

    def take(self, plan: StepPlan, num_bytes: int) -> bool:
        """Return whether a step of so many bytes fits, and if so take them."""
        if plan.sampling_id != self._sampling_id:
            self._sampling_id, self._bytes_left = plan.sampling_id, plan.byte_budget
        if self._bytes_left is None:
            return True
        if num_bytes > self._bytes_left:
            # Once a step does not fit, none does: small (decode) steps would go on and bias the sample.
            self._bytes_left = 0
            return False
        self._bytes_left -= num_bytes
        return True
