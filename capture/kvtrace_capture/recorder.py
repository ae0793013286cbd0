"""The worker's side of one step: picks the sampled rows of K and V in each layer for the writer.

It needs torch and no vllm. Nothing here may hurt a request: every fault is logged once, its rows are counted
as dropped, and the engine goes on.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from kvtrace_capture.drop_tally import DropTally, Reason, RefusalLog
from kvtrace_capture.gathered_rows import GatheredRows
from kvtrace_capture.host_copy import HostCopy
from kvtrace_capture.row_selection import RowSelection, select_rows
from kvtrace_capture.step_plan import PlannedRows, StepPlan, planned_rows
from kvtrace_capture.writer import StepRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace_capture.gathered_rows import HookedLayer
    from kvtrace_capture.writer import TraceWriter

logger = logging.getLogger("kvtrace.capture")

_FOUND: Final = -1
"""Where a step's mask of found rows travels, beside its slabs."""


@dataclass(frozen=True, slots=True)
class _StepOnItsWay:
    plan: StepPlan
    planned: PlannedRows
    copy: HostCopy[int]


class StepRecorder:
    """Collects the planned rows of every layer between `begin` and `finish`.

    layers: by the engine's layer name. block_sizes: by KV-cache group.
    """

    def __init__(
        self,
        layers: Mapping[str, HookedLayer],
        block_sizes: Sequence[int],
        writer: TraceWriter,
    ) -> None:
        self._layers = layers
        self._block_sizes = block_sizes
        self._writer = writer
        self._sampling_id = -1
        self._bytes_left: int | None = None
        self._row_bytes = sum(layer.row_bytes for layer in layers.values())
        self._plan: StepPlan | None = None
        self._planned: PlannedRows | None = None
        self._selections: dict[int, tuple[int, RowSelection]] = {}
        self._gathered = GatheredRows(layers)
        self._has_fault = False
        self._is_fault_logged = False
        self._on_their_way: deque[_StepOnItsWay] = deque()
        self._dropped = DropTally(writer.drop)
        self._refusals = RefusalLog()
        self._hook_s = 0.0
        self._copy_s = 0.0

    def begin(self, plan: StepPlan) -> None:
        """Start a step. Rows that have no room or no budget are dropped here, before anything is copied."""
        if self._planned is not None:  # its step was never finished
            self._dropped.add(self._planned.request, "hook_failed")
        self._plan = self._planned = None
        if not plan.requests or not self._layers:
            return
        started = time.perf_counter()
        self._selections.clear()
        self._gathered.clear()
        self._has_fault = False
        try:
            planned = planned_rows(plan, self._block_sizes)
            step_bytes = len(planned.request) * self._row_bytes
            refusal = self._refusal(plan, step_bytes)
            if refusal is None:
                self._plan, self._planned = plan, planned
            else:
                self._dropped.add(planned.request, refusal)
                self._refusals.log(refusal, plan.sampling_id, step_bytes, self._writer.queue_bytes)
        except Exception as error:  # noqa: BLE001 -- serving must go on, whatever is wrong with a plan
            self._note_fault(error)
        self._hook_s += time.perf_counter() - started

    def take(self, name: str, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Copy a layer's planned rows. key, value: [num_tokens, kv_head, head_dim], before quantization.

        slot_mapping: [num_tokens] int64, the cache slot each token is written to; −1 where none.
        """
        planned = self._planned
        if planned is None or self._has_fault:
            return
        started = time.perf_counter()
        try:
            rows = self._select(planned, self._layers[name].group, slot_mapping).rows
            self._gathered.take(name, key, value, rows)
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        taken_s = time.perf_counter() - started
        self._copy_s += taken_s
        self._hook_s += taken_s

    def give_up_step(self) -> None:
        """Let the step's rows be counted as dropped."""
        self._has_fault = True

    def finish(self) -> None:
        """End the step: send its rows on their way to the writer, or count them as dropped."""
        started = time.perf_counter()
        plan, planned = self._plan, self._planned
        self._plan = self._planned = None
        try:
            if plan is not None and planned is not None:
                self._end(plan, planned)
            self._hand_over(may_wait=False)
            self._dropped.pass_on_if_due()
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        self._hook_s += time.perf_counter() - started
        if plan is not None:
            self._writer.add_hook_seconds(self._hook_s, self._copy_s)
            self._hook_s = self._copy_s = 0.0

    def flush(self) -> None:
        """Wait until what was captured so far is committed."""
        self._hand_over(may_wait=True)
        self._dropped.pass_on()
        self._writer.flush()

    def close(self) -> None:
        """Write what was captured and the counts of dropped rows, and close the store."""
        self.flush()
        self._writer.close()

    def _refusal(self, plan: StepPlan, step_bytes: int) -> Reason | None:
        """Return why a step of so many bytes is not captured, or None."""
        on_their_way = sum(len(step.planned.request) for step in self._on_their_way) * self._row_bytes
        if not self._writer.has_room(on_their_way + step_bytes):
            return self._writer_refusal()
        return None if self._fits_budget(plan, step_bytes) else "budget"

    def _writer_refusal(self) -> Reason:
        return "write_failed" if self._writer.failure else "queue_full"

    def _fits_budget(self, plan: StepPlan, step_bytes: int) -> bool:
        if plan.sampling_id != self._sampling_id:
            self._sampling_id, self._bytes_left = plan.sampling_id, plan.byte_budget
        if self._bytes_left is None:
            return True
        if step_bytes > self._bytes_left:
            # Once a step does not fit, none does: small (decode) steps would go on and bias the sample.
            self._bytes_left = 0
            return False
        self._bytes_left -= step_bytes
        return True

    def _select(self, planned: PlannedRows, group: int, slot_mapping: torch.Tensor) -> RowSelection:
        """Find the planned rows once a step and group: all layers of a group share one slot mapping."""
        address = slot_mapping.data_ptr()
        if group not in self._selections:
            self._selections[group] = address, select_rows(planned.slots[group], slot_mapping)
        known_address, selection = self._selections[group]
        if known_address != address:
            raise RuntimeError(f"KV-cache group {group} has two slot mappings in one step")
        return selection

    def _end(self, plan: StepPlan, planned: PlannedRows) -> None:
        try:
            if not self._has_fault:
                self._send_off(plan, planned)
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        if self._has_fault:
            self._dropped.add(planned.request, "hook_failed")

    def _send_off(self, plan: StepPlan, planned: PlannedRows) -> None:
        if silent := self._gathered.silent_layers():
            raise RuntimeError(f"these layers did not write their cache in a step: {', '.join(silent)}")
        found = [selection.found for _, selection in self._selections.values()]
        is_found = found[0] if len(found) == 1 else torch.stack(found).all(0)
        copy = HostCopy({_FOUND: is_found, **self._gathered.slabs})
        self._on_their_way.append(_StepOnItsWay(plan, planned, copy))

    def _hand_over(self, *, may_wait: bool) -> None:
        """Give the writer the steps whose rows have arrived. may_wait: then the others too."""
        while self._on_their_way:
            step = self._on_their_way[0]
            try:
                if may_wait:
                    step.copy.wait()
                elif not step.copy.is_done():
                    return
                self._append(step)
            except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
                self._note_fault(error)
                self._dropped.add(step.planned.request, "hook_failed")
            self._on_their_way.popleft()

    def _append(self, step: _StepOnItsWay) -> None:
        planned, found = step.planned, step.copy.tensors.pop(_FOUND).numpy()
        if not found.all() and not step.plan.may_fall_short:
            self._note_fault(RuntimeError(f"{int((~found).sum())} planned tokens were not in the batch"))
            self._dropped.add(planned.request[~found], "hook_failed")
        if not found.any():
            return
        rows = StepRows(
            request=planned.request[found],
            position=planned.position[found],
            sampling_id=planned.sampling_id[found],
            step=step.plan.step,
            tensors=self._gathered.stored_bits(step.copy.tensors, found),
        )
        if not self._writer.append(rows):
            refusal = self._writer_refusal()
            self._dropped.add(rows.request, refusal)
            self._refusals.log(refusal, step.plan.sampling_id, rows.num_bytes, self._writer.queue_bytes)

    def _note_fault(self, error: Exception) -> None:
        self._has_fault = True
        if not self._is_fault_logged:
            self._is_fault_logged = True
            logger.error("kvtrace: rows are lost, serving goes on (logged once): %s", error, exc_info=error)
