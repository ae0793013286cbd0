"""The worker's side of one step: picks the sampled rows of K and V in each layer for the writer.

It needs torch and no vllm. Nothing here may hurt a request: every fault is logged once, its rows are counted
as dropped, and the engine goes on.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from kvtrace_capture.drop_tally import DropTally
from kvtrace_capture.host_copy import HostCopy
from kvtrace_capture.row_selection import RowSelection, select_rows
from kvtrace_capture.step_plan import PlannedRows, StepPlan, spell_out
from kvtrace_capture.writer import StepRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace_capture.writer import TraceWriter

logger = logging.getLogger("kvtrace.capture")

_TORCH_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MAX_STEPS_ON_THEIR_WAY: Final = 16
_FOUND: Final = (-1, "found")
"""Where a step's mask of found rows travels, beside its tensors."""


@dataclass(frozen=True, slots=True)
class HookedLayer:
    """One layer as its hook must find it; a cache write of another shape or dtype is not stored."""

    index: int
    group: int
    """The layer's KV-cache group, which has a block table and slots of its own."""
    k_shape: tuple[int, int]
    """(kv_head, head_dim)"""
    v_shape: tuple[int, int]
    dtype: Literal["bfloat16", "float16", "float32"]

    @property
    def row_bytes(self) -> int:
        """Return the bytes of K and V of one token."""
        num_values = self.k_shape[0] * self.k_shape[1] + self.v_shape[0] * self.v_shape[1]
        return num_values * _TORCH_DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class _StepOnItsWay:
    plan: StepPlan
    planned: PlannedRows
    copy: HostCopy[tuple[int, str]]


class StepRecorder:
    """Collects the planned rows of every layer between `begin` and `finish`.

    layers: by the engine's layer name. block_sizes: by KV-cache group. byte_budget: of raw K and V, or None.
    """

    def __init__(
        self,
        layers: Mapping[str, HookedLayer],
        block_sizes: Sequence[int],
        writer: TraceWriter,
        byte_budget: int | None = None,
    ) -> None:
        self._layers = layers
        self._block_sizes = block_sizes
        self._writer = writer
        self._bytes_left = byte_budget
        self._row_bytes = sum(layer.row_bytes for layer in layers.values())
        self._plan: StepPlan | None = None
        self._planned: PlannedRows | None = None
        self._selections: dict[int, tuple[int, RowSelection]] = {}
        self._tensors: dict[tuple[int, str], torch.Tensor] = {}
        self._has_fault = False
        self._is_fault_logged = False
        self._on_their_way: deque[_StepOnItsWay] = deque()
        self._dropped = DropTally(writer.drop)
        self._hook_s = 0.0

    def begin(self, plan: StepPlan) -> None:
        """Start a step. Rows beyond the byte budget are dropped here, before anything is copied."""
        self._plan = self._planned = None
        if not plan.requests or not self._layers:
            return
        started = time.perf_counter()
        self._selections.clear()
        self._tensors.clear()
        self._has_fault = False
        try:
            planned = spell_out(plan, self._block_sizes)
            if self._fits_budget(planned):
                self._plan, self._planned = plan, planned
            else:
                self._dropped.add(planned.request, "budget")
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
            layer = self._layers[name]
            rows = self._select(planned, layer.group, slot_mapping).rows
            for tensor, values, shape in (("k", key, layer.k_shape), ("v", value, layer.v_shape)):
                if values.dtype != _TORCH_DTYPES[layer.dtype] or tuple(values.shape[1:]) != shape:
                    raise TypeError(
                        f"layer {name} writes {tensor} as {values.dtype} {tuple(values.shape)}, "
                        f"rank.json says {layer.dtype} with {shape} a token"
                    )
                if (layer.index, tensor) in self._tensors:
                    raise RuntimeError(f"layer {name} writes its cache twice in one step")
                self._tensors[layer.index, tensor] = values.index_select(0, rows)
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        self._hook_s += time.perf_counter() - started

    def finish(self) -> None:
        """End the step: send its rows on their way to the writer, or count them as dropped."""
        started = time.perf_counter()
        plan, planned = self._plan, self._planned
        self._plan = self._planned = None
        if plan is not None and planned is not None:
            try:
                self._send_off(plan, planned)
            except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
                self._note_fault(error)
            if self._has_fault:
                self._dropped.add(planned.request, "hook_failed")
        while self._on_their_way and self._on_their_way[0].copy.is_done():
            self._hand_over(self._on_their_way.popleft())
        self._dropped.pass_on_if_due()
        self._hook_s += time.perf_counter() - started
        if plan is not None:
            self._writer.add_hook_seconds(self._hook_s)
            self._hook_s = 0.0

    def close(self) -> None:
        """Hand over what is on its way, write the counts of dropped rows, and close the store."""
        while self._on_their_way:
            step = self._on_their_way.popleft()
            step.copy.wait()
            self._hand_over(step)
        self._dropped.pass_on()
        self._writer.close()

    def _fits_budget(self, planned: PlannedRows) -> bool:
        if self._bytes_left is None:
            return True
        step_bytes = len(planned.request) * self._row_bytes
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

    def _send_off(self, plan: StepPlan, planned: PlannedRows) -> None:
        if self._has_fault:
            return
        if len(self._tensors) != 2 * len(self._layers):
            silent = [name for name, x in self._layers.items() if (x.index, "k") not in self._tensors]
            raise RuntimeError(f"these layers did not write their cache in a step: {', '.join(silent)}")
        if len(self._on_their_way) >= _MAX_STEPS_ON_THEIR_WAY:
            self._dropped.add(planned.request, "queue_full")
            return
        found = torch.stack([selection.found for _, selection in self._selections.values()]).all(0)
        self._on_their_way.append(_StepOnItsWay(plan, planned, HostCopy({_FOUND: found, **self._tensors})))
        self._tensors.clear()

    def _hand_over(self, step: _StepOnItsWay) -> None:
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
            tensors={name: _stored_bits(values, found) for name, values in step.copy.tensors.items()},
        )
        if not self._writer.append(rows):
            self._dropped.add(rows.request, "write_failed" if self._writer.failure else "queue_full")

    def _note_fault(self, error: Exception) -> None:
        self._has_fault = True
        if not self._is_fault_logged:
            self._is_fault_logged = True
            logger.error("kvtrace: rows are lost, serving goes on (logged once): %s", error, exc_info=error)


def _stored_bits(values: torch.Tensor, keep: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the kept rows as they are stored: uint16 bits for bf16 and fp16, float32 as itself."""
    is_float32 = values.dtype == torch.float32
    bits = values.numpy() if is_float32 else values.view(torch.int16).numpy().view(np.uint16)
    return bits if keep.all() else bits[keep]
