"""The worker's side of one step: picks the sampled rows of K and V in each layer for the writer.

It needs torch and no vllm. Nothing here may hurt a request: every fault is logged once, its rows are
counted as dropped, and the engine goes on.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from kvtrace.trace.format import DroppedRecord
from kvtrace_capture.step_plan import PlannedRows, StepPlan, spell_out
from kvtrace_capture.writer import StepRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvtrace_capture.writer import TraceWriter

logger = logging.getLogger("kvtrace.capture")

_TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_TALLY_SECONDS = 5.0


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
class _Selection:
    """Where a group's planned tokens lie in the batch. rows: [planned] int64; found: [planned] bool."""

    slot_mapping: torch.Tensor
    rows: torch.Tensor
    found: torch.Tensor


class StepRecorder:
    """Collects the planned rows of every layer between `begin` and `finish`."""

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
        self._selections: dict[int, _Selection] = {}
        self._tensors: dict[tuple[int, str], torch.Tensor] = {}
        self._fault: str | None = None
        self._fault_logged = False
        self._hook_s = 0.0
        self._tally: dict[tuple[int, str], int] = {}
        self._tallied_at = time.monotonic()

    def begin(self, plan: StepPlan) -> None:
        """Start a step. Rows beyond the byte budget are dropped here, before anything is copied."""
        started = time.perf_counter()
        self._plan = self._planned = None
        if not plan.requests or not self._layers:
            return
        try:
            planned = spell_out(plan, self._block_sizes)
        except Exception as error:  # noqa: BLE001 -- serving must go on, whatever is wrong with a plan
            self._note_fault(error)
            return
        if self._bytes_left is not None:
            step_bytes = len(planned.request) * self._row_bytes
            # Once a step does not fit, none does: small (decode) steps would go on and bias the sample.
            if step_bytes > self._bytes_left:
                self._bytes_left = 0
                self._drop(planned.request, "budget")
                return
            self._bytes_left -= step_bytes
        self._plan, self._planned = plan, planned
        self._selections.clear()
        self._tensors.clear()
        self._fault = None
        self._hook_s += time.perf_counter() - started

    def take(self, name: str, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Copy a layer's planned rows. key, value: [num_tokens, kv_head, head_dim], before quantization.

        slot_mapping: [num_tokens] int64, the cache slot each token is written to; −1 where none.
        """
        planned = self._planned
        if planned is None or self._fault is not None:
            return
        started = time.perf_counter()
        try:
            layer = self._layers[name]
            selection = self._select(planned, layer.group, slot_mapping)
            for tensor, values, shape in (("k", key, layer.k_shape), ("v", value, layer.v_shape)):
                if values.dtype != _TORCH_DTYPES[layer.dtype] or tuple(values.shape[1:]) != shape:
                    raise TypeError(
                        f"layer {name} writes {tensor} as {values.dtype} {tuple(values.shape)}, "
                        f"rank.json says {layer.dtype} with {shape} a token"
                    )
                if (layer.index, tensor) in self._tensors:
                    raise RuntimeError(f"layer {name} writes its cache twice in one step")
                self._tensors[layer.index, tensor] = values.index_select(0, selection.rows)
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self._note_fault(error)
        self._hook_s += time.perf_counter() - started

    def finish(self) -> None:
        """End the step: hand its rows to the writer, or count them as dropped."""
        plan, planned = self._plan, self._planned
        self._plan = self._planned = None
        if plan is not None and planned is not None:
            started = time.perf_counter()
            try:
                self._hand_over(plan, planned)
            except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
                self._note_fault(error)
                self._drop(planned.request, "hook_failed")
            self._hook_s += time.perf_counter() - started
            self._writer.add_hook_seconds(self._hook_s)
            self._hook_s = 0.0
        if self._tally and time.monotonic() - self._tallied_at > _TALLY_SECONDS:
            self._write_tally()

    def close(self) -> None:
        """Write the counts of dropped rows, then close the store."""
        self._write_tally()
        self._writer.close()

    def _select(self, planned: PlannedRows, group: int, slot_mapping: torch.Tensor) -> _Selection:
        """Find the planned slots in the batch, once a step and group; reads nothing back from the device."""
        known = self._selections.get(group)
        if known is not None:
            if known.slot_mapping.data_ptr() != slot_mapping.data_ptr():
                raise RuntimeError(f"KV-cache group {group} has two slot mappings in one step")
            return known
        wanted = torch.from_numpy(planned.slots[group]).to(slot_mapping.device, non_blocking=True)
        ordered, order = torch.sort(slot_mapping)
        at = torch.searchsorted(ordered, wanted).clamp_(max=len(ordered) - 1)
        selection = _Selection(slot_mapping, order[at], (ordered[at] == wanted) & (wanted >= 0))
        self._selections[group] = selection
        return selection

    def _hand_over(self, plan: StepPlan, planned: PlannedRows) -> None:
        if self._fault is not None:
            self._drop(planned.request, "hook_failed")
            return
        if len(self._tensors) != 2 * len(self._layers):
            silent = [name for name, x in self._layers.items() if (x.index, "k") not in self._tensors]
            raise RuntimeError(f"these layers did not write their cache in a step: {', '.join(silent)}")
        found = torch.stack([s.found for s in self._selections.values()]).all(0).cpu().numpy()
        if not found.all():
            if not plan.may_fall_short:
                self._note_fault(RuntimeError(f"{int((~found).sum())} planned tokens were not in the batch"))
                self._drop(planned.request[~found], "hook_failed")
            if not found.any():
                return
        rows = StepRows(
            request=planned.request[found],
            position=planned.position[found],
            sampling_id=planned.sampling_id[found],
            step=plan.step,
            tensors={name: _stored_bits(values, found) for name, values in self._tensors.items()},
        )
        self._tensors.clear()
        if not self._writer.append(rows):
            self._drop(rows.request, "write_failed" if self._writer.failure else "queue_full")

    def _note_fault(self, error: Exception) -> None:
        self._fault = str(error)
        if not self._fault_logged:
            self._fault_logged = True
            logger.error("kvtrace: rows are lost, serving goes on (logged once): %s", error, exc_info=error)

    def _drop(
        self,
        requests: NDArray[np.int32],
        reason: Literal["budget", "queue_full", "write_failed", "hook_failed"],
    ) -> None:
        numbers, counts = np.unique(requests, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._tally[number, reason] = self._tally.get((number, reason), 0) + count

    def _write_tally(self) -> None:
        for (request, reason), num_rows in self._tally.items():
            record: dict[str, Any] = {"request": request, "num_rows": num_rows, "reason": reason}
            self._writer.drop(DroppedRecord(**record))
        self._tally.clear()
        self._tallied_at = time.monotonic()


def _stored_bits(values: torch.Tensor, keep: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the kept rows on the host as stored: uint16 bits for bf16 and fp16, float32 as itself."""
    host = values.cpu()
    bits = host.numpy() if host.dtype == torch.float32 else host.view(torch.int16).numpy().view(np.uint16)
    return bits if keep.all() else bits[keep]
