"""The worker's side of one step: picks the planned rows of K, V and Q in each layer for the writers.

It needs torch and no vllm. Nothing here may hurt a request: every fault is logged once, its rows are counted
as dropped, and the engine goes on.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvtrace_capture.byte_budget import ByteBudget
from kvtrace_capture.drop_tally import RefusalLog
from kvtrace_capture.first_steps import FirstSteps
from kvtrace_capture.gathered_rows import GatheredRows
from kvtrace_capture.host_copy import HostCopy
from kvtrace_capture.row_selection import RowSelection, select_rows
from kvtrace_capture.row_sink import RowSink
from kvtrace_capture.step_on_its_way import FOUND, StepOnItsWay
from kvtrace_capture.step_plan import PlannedRows, StepPlan, planned_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace_capture.drop_tally import Reason
    from kvtrace_capture.gathered_rows import HookedLayer
    from kvtrace_capture.query_rows import QueryRows
    from kvtrace_capture.writer import TraceWriter

logger = logging.getLogger("kvtrace.capture")


class StepRecorder:
    """Collects the planned rows of every layer between `begin` and `finish`.

    layers: those whose K and V are stored, by the engine's layer name. block_sizes: by KV-cache group.
    writer: of sampled K and V. queries: None where they are not captured.
    """

    def __init__(
        self,
        layers: Mapping[str, HookedLayer],
        block_sizes: Sequence[int],
        writer: TraceWriter,
        queries: QueryRows | None = None,
    ) -> None:
        self._layers = layers
        self._block_sizes = block_sizes
        self._writer = writer
        self._kv = RowSink(writer)
        self._queries = queries
        self._budget = ByteBudget()
        self._first_steps = FirstSteps(layers)
        self._is_stopped = False
        self._row_bytes = sum(layer.row_bytes for layer in layers.values())
        self._plan: StepPlan | None = None
        self._planned: PlannedRows | None = None
        self._selections: dict[int, tuple[int, RowSelection]] = {}
        self._gathered = GatheredRows(layers)
        self._has_fault = False
        self._is_fault_logged = False
        self._on_their_way: deque[StepOnItsWay] = deque()
        self._refusals = RefusalLog()
        self._hook_s = 0.0
        self._copy_s = 0.0

    def begin(self, plan: StepPlan) -> None:
        """Start a step. Rows that have no room or no budget are dropped here, before anything is copied."""
        if self._planned is not None:  # its step was never finished
            self._drop(self._planned, "hook_failed")
        self._plan = self._planned = None
        if not plan.requests or not (self._layers or self._queries):
            return
        started = time.perf_counter()
        self._selections.clear()
        self._gathered.clear()
        self._has_fault = False
        try:
            planned = planned_rows(plan, self._block_sizes)
            step_bytes = self._num_bytes(planned)
            refusal = self._refusal(plan, step_bytes)
            if refusal is None:
                if self._queries is not None:
                    self._queries.begin(planned)
                self._plan, self._planned = plan, planned
            else:
                self._drop(planned, refusal)
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
            layer = self._layers.get(name)
            rows = self._select(planned, self._group_of(name), slot_mapping).rows
            if layer is not None:
                self._gathered.take(name, "k", key, rows)
                self._gathered.take(name, "v", value, rows)
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        self._count_copy(started)

    def take_query(self, name: str, tensor: str, values: torch.Tensor) -> None:
        """Copy a layer's planned queries ("q"), or its output for them ("o").

        values: [num_tokens, query_head, head_dim], after RoPE; the output before its projection. The rows are
        those that the layer's cache write had in this step.
        """
        queries = self._queries
        if queries is None or self._planned is None or self._has_fault or not queries.is_wanted:
            return
        started = time.perf_counter()
        _, selection = self._selections.get(queries.group_of(name), (0, None))
        queries.take(name, tensor, values, selection)
        self._count_copy(started)

    def take_residual(self, name: str, added: torch.Tensor, before: torch.Tensor) -> None:
        """Measure what a layer's attention adds at the planned queries against the stream that it makes.

        added, before: [num_tokens, hidden], the attention's output after its projection, and the residual
        stream that it is added to.
        """
        queries = self._queries
        if queries is None or self._planned is None or self._has_fault or not queries.is_wanted:
            return
        started = time.perf_counter()
        _, selection = self._selections.get(queries.group_of(name), (0, None))
        queries.take_residual(name, added, before, selection)
        self._count_copy(started)

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
            for sink in self._sinks():
                sink.pass_on_if_due()
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        self._hook_s += time.perf_counter() - started
        if plan is not None:
            self._writer.add_hook_seconds(self._hook_s, self._copy_s)
            self._hook_s = self._copy_s = 0.0

    def flush(self) -> None:
        """Wait until what was captured so far is committed."""
        self._hand_over(may_wait=True)
        for sink in self._sinks():
            sink.flush()

    def close(self) -> None:
        """Write what was captured and the counts of dropped rows, and close the stores."""
        self.flush()
        if self._queries is not None:
            self._queries.note_residual()
        for sink in self._sinks():
            sink.close()

    def _sinks(self) -> list[RowSink]:
        return [*(self._queries.sinks if self._queries is not None else ()), self._kv]

    def _group_of(self, name: str) -> int:
        layer = self._layers.get(name)
        if layer is not None:
            return layer.group
        assert self._queries is not None, "only hooked layers come here"
        return self._queries.group_of(name)

    def _num_bytes(self, planned: PlannedRows) -> int:
        of_queries = self._queries.num_bytes(planned) if self._queries is not None else 0
        return len(planned.request) * self._row_bytes + of_queries

    def _count_copy(self, started: float) -> None:
        taken_s = time.perf_counter() - started
        self._copy_s += taken_s
        self._hook_s += taken_s

    def _drop(self, planned: PlannedRows, reason: Reason, chosen: NDArray[np.bool_] | None = None) -> None:
        """Count planned rows as lost in every store that they were for. chosen: which of them; None: all."""
        chosen = np.ones_like(planned.is_sampled) if chosen is None else chosen
        if self._layers:
            self._kv.drop(planned, chosen & planned.is_sampled, reason)
        if self._queries is not None:
            self._queries.drop(planned, chosen, reason)

    def _refusal(self, plan: StepPlan, step_bytes: int) -> Reason | None:
        """Return why a step of so many bytes is not captured, or None."""
        if self._is_stopped:
            return "hook_failed"
        on_their_way = sum(self._num_bytes(step.planned) for step in self._on_their_way)
        if not self._writer.has_room(on_their_way + step_bytes):
            return self._kv.refusal
        return None if self._budget.take(plan, step_bytes) else "budget"

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
            self._drop(planned, "hook_failed")

    def _send_off(self, plan: StepPlan, planned: PlannedRows) -> None:
        silent = self._gathered.silent_layers()
        if (reason := self._first_steps.note(silent)) is not None:
            self._is_stopped = True
            logger.error("kvtrace: capture is stopped, serving goes on: %s", reason)
        if silent:
            raise RuntimeError(f"these layers did not write their cache in a step: {', '.join(silent)}")
        found = [selection.found for _, selection in self._selections.values()]
        is_found = found[0] if len(found) == 1 else torch.stack(found).all(0)
        queries = self._queries.slabs() if self._queries is not None else {}
        copy = HostCopy(
            {
                FOUND: is_found,
                **{("kv", number): slab for number, slab in self._gathered.slabs.items()},
                **{("q", number): slab for number, slab in queries.items()},
            }
        )
        self._on_their_way.append(StepOnItsWay(plan, planned, copy))

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
                self._drop(step.planned, "hook_failed")
            self._on_their_way.popleft()

    def _append(self, step: StepOnItsWay) -> None:
        planned, found = step.planned, step.copy.tensors.pop(FOUND).numpy()
        if not found.all() and not step.plan.may_fall_short:
            self._note_fault(RuntimeError(f"{int((~found).sum())} planned tokens were not in the batch"))
            self._drop(planned, "hook_failed", ~found)
        if not found.any():
            return
        number, queries, slabs = step.plan.step, self._queries, step.slabs("kv")
        stores = [(self._kv, found & planned.is_sampled)] if self._layers else []
        if queries is not None and queries.context is not None:
            stores.append((queries.context, found & ~planned.is_sampled))
        for sink, chosen in stores:
            tensors = partial(self._gathered.stored_bits, slabs, chosen)
            self._log_refused(sink, step, sink.store(number, planned, chosen, tensors))
        if queries is not None:
            num_refused = queries.store(number, planned, found, step.slabs("q"))
            self._log_refused(queries.sink, step, num_refused)

    def _log_refused(self, sink: RowSink, step: StepOnItsWay, num_bytes: int | None) -> None:
        if num_bytes is not None:
            self._refusals.log(sink.refusal, step.plan.sampling_id, num_bytes, self._writer.queue_bytes)

    def _note_fault(self, error: Exception) -> None:
        self._has_fault = True
        if not self._is_fault_logged:
            self._is_fault_logged = True
            logger.error("kvtrace: rows are lost, serving goes on (logged once): %s", error, exc_info=error)
