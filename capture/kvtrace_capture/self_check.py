"""Holds the first steps of an engine that was never tried against what its scheduler says.

The hooks are wrapped around names that another version may use in another way. Whether they still see
everything is a matter of counting: in every step each attention layer must write as many tokens to its cache
as were scheduled. It needs no vllm. Counting waits for the device, so it ends after a few steps.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from kvtrace_capture.recorder import StepRecorder
    from kvtrace_capture.step_plan import StepPlan

logger = logging.getLogger("kvtrace.capture")

STEPS: Final = 8


class CheckedRecorder:
    """A recorder whose first steps are counted: it goes on and warns, or stops and says which layer is wrong.

    layers: names of the hooked layers. engine: for the log. After a failure every row is counted as dropped,
    and serving goes on.
    """

    def __init__(
        self, recorder: StepRecorder, layers: Iterable[str], engine: str, steps: int = STEPS
    ) -> None:
        self._recorder = recorder
        self._layers = tuple(layers)
        self._engine = engine
        self._steps_left = steps
        self._steps_passed = self._tokens_passed = 0
        self._plan: StepPlan | None = None
        self._counts: dict[int, int] = {}
        self._written: dict[str, int] = {}
        self._fault = ""
        self._is_stopped = False

    def begin(self, plan: StepPlan) -> None:
        """Start a step."""
        self._recorder.begin(plan)
        if self._is_stopped:
            self._recorder.give_up_step()
        elif self._steps_left:
            self._plan = plan
            self._counts.clear()
            self._written = dict.fromkeys(self._layers, 0)

    def take(self, name: str, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Count a layer's cache write, and pass it on."""
        if self._plan is not None:
            try:
                self._written[name] += self._count(slot_mapping)
            except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
                self._fault = f" ({type(error).__name__}: {error})"
        self._recorder.take(name, key, value, slot_mapping)

    def take_query(self, name: str, tensor: str, values: torch.Tensor) -> None:
        """Pass a layer's queries or outputs on."""
        self._recorder.take_query(name, tensor, values)

    def take_residual(self, name: str, added: torch.Tensor, before: torch.Tensor) -> None:
        """Pass on what a layer's attention adds, and to what."""
        self._recorder.take_residual(name, added, before)

    def finish(self) -> None:
        """End a step: its rows go on where the counts are right."""
        plan, self._plan = self._plan, None
        if plan is not None and plan.num_tokens:
            self._judge(plan)
        self._recorder.finish()

    def flush(self) -> None:
        """Wait until what was captured so far is committed."""
        self._recorder.flush()

    def close(self) -> None:
        """Close the store."""
        self._recorder.close()

    def _count(self, slot_mapping: torch.Tensor) -> int:
        address = slot_mapping.data_ptr()  # layers share a mapping: one wait for the device a step
        if address not in self._counts:
            self._counts[address] = int((slot_mapping >= 0).sum())
        return self._counts[address]

    def _judge(self, plan: StepPlan) -> None:
        wrong = {
            name: written
            for name, written in self._written.items()
            if not (written == plan.num_tokens or (plan.may_fall_short and 0 < written < plan.num_tokens))
        }
        if wrong:
            name, written = next(iter(wrong.items()))
            others = f", and {len(wrong) - 1} more layers are wrong" if len(wrong) > 1 else ""
            logger.error(
                "kvtrace: capture is stopped, serving goes on: kvtrace was never tried with %s, and in step "
                "%d the hook of layer %s saw %d of %d scheduled tokens%s%s",
                *(self._engine, plan.step, name, written, plan.num_tokens, others, self._fault),
            )
            self._is_stopped = True
            self._recorder.give_up_step()
            return
        self._steps_left -= 1
        self._steps_passed += 1
        self._tokens_passed += plan.num_tokens
        if not self._steps_left:
            logger.warning(
                "kvtrace: never tried with %s, but the self-check passed: each of %d layers wrote all "
                "%d tokens of %d steps",
                self._engine,
                len(self._layers),
                self._tokens_passed,
                self._steps_passed,
            )
