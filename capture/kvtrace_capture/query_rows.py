"""The queries of one step, and the engine's attention output for them, picked out of each layer's forward.

It needs torch and no vllm. A fault here costs the step's queries, and nothing of K and V.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvtrace.trace.attention_format import ResidualRecord
from kvtrace_capture.gathered_rows import GatheredRows
from kvtrace_capture.row_sink import RowSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvtrace_capture.drop_tally import Reason
    from kvtrace_capture.gathered_rows import QueryLayer
    from kvtrace_capture.row_selection import RowSelection
    from kvtrace_capture.step_plan import PlannedRows
    from kvtrace_capture.writer import TraceWriter

logger = logging.getLogger("kvtrace.capture")


class QueryRows:
    """Collects the planned queries of every layer in one step.

    layers: by the engine's layer name. queries: their writer. context: the writer of K and V that are kept
    for attention alone; None on a rank whose KV heads another one stores.
    """

    def __init__(
        self, layers: Mapping[str, QueryLayer], queries: TraceWriter, context: TraceWriter | None
    ) -> None:
        self.sink = RowSink(queries)
        self.context = None if context is None else RowSink(context)
        self._layers = layers
        self._gathered = GatheredRows(layers)
        self._row_bytes = sum(layer.row_bytes for layer in layers.values())
        self._rows: dict[int, torch.Tensor] = {}
        self._places: torch.Tensor | None = None
        """Which of the step's planned rows have a query; None where none has, or the step is given up."""
        self._residual: dict[int, torch.Tensor] = {}
        """Layer index → [queries, Σ of their ratios] on the device."""
        self._is_fault_logged = False

    @property
    def sinks(self) -> list[RowSink]:
        """Return the ends of both stores."""
        return [self.sink] if self.context is None else [self.sink, self.context]

    def begin(self, planned: PlannedRows) -> None:
        """Start a step."""
        self._gathered.clear()
        self._rows.clear()
        self._places = None
        if planned.has_query.any() and not self.sink.has_failed:
            self._places = torch.from_numpy(np.flatnonzero(planned.has_query))

    def num_bytes(self, planned: PlannedRows) -> int:
        """Return the bytes that a step's queries take."""
        return int(planned.has_query.sum()) * self._row_bytes

    def group_of(self, name: str) -> int:
        """Return a layer's KV-cache group."""
        return self._layers[name].group

    @property
    def is_wanted(self) -> bool:
        """Return whether this step's queries are still to be taken."""
        return self._places is not None

    def take(self, name: str, tensor: str, values: torch.Tensor, selection: RowSelection | None) -> None:
        """Copy a layer's planned queries or outputs. values: [num_tokens, query_head, head_dim].

        selection: the step's planned rows in the layer's group; None where its cache write was not seen.
        """
        if self._places is None:
            return
        try:
            if selection is None:
                raise RuntimeError(f"layer {name} runs its attention before it writes its cache")
            self._gathered.take(name, tensor, values, self._rows_of(self._layers[name].group, selection))
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self.give_up(error)

    def take_residual(
        self, name: str, added: torch.Tensor, before: torch.Tensor, selection: RowSelection | None
    ) -> None:
        """Add one layer's ‖W_O o‖² / ‖h‖² up over the step's queries. added, before: [num_tokens, hidden]."""
        if self._places is None or selection is None:
            return
        try:
            layer = self._layers[name]
            rows = self._rows_of(layer.group, selection)
            found = selection.found[self._places.to(selection.found.device)]
            output = added[rows].double()
            whole = (output + before[rows].double()).square().sum(-1)
            ratio = torch.where(found & (whole > 0), output.square().sum(-1) / whole, 0)
            sums = torch.stack([(found & (whole > 0)).sum().double(), ratio.sum()])
            self._residual[layer.index] = self._residual.get(layer.index, 0) + sums
        except Exception as error:  # noqa: BLE001 -- a fault of capture must never reach a request
            self.give_up(error)

    def note_residual(self) -> None:
        """Give what was added up to the store, which keeps it when it is closed."""
        sums = {layer: found.tolist() for layer, found in sorted(self._residual.items())}
        self.sink.note_residual(
            tuple(
                ResidualRecord(layer=layer, num_queries=int(number), sum_ratio=ratio)
                for layer, (number, ratio) in sums.items()
                if number
            )
        )

    def slabs(self) -> dict[int, torch.Tensor]:
        """End the step: return what was gathered, empty where there is none or the step was given up."""
        if self._places is not None and (silent := self._gathered.silent_layers()):
            self.give_up(RuntimeError(f"no query was seen of these layers: {', '.join(silent)}"))
        return dict(self._gathered.slabs) if self._places is not None else {}

    def store(
        self, step: int, planned: PlannedRows, found: NDArray[np.bool_], slabs: Mapping[int, torch.Tensor]
    ) -> int | None:
        """Give the found queries of a step to their store; without slabs, count them as lost.

        slabs: the step's, on the host. Return the bytes of rows that the writer did not take, if so.
        """
        chosen = planned.has_query & found
        if not slabs:
            self.sink.drop(planned, chosen, "write_failed" if self.sink.has_failed else "hook_failed")
            return None
        kept = found[planned.has_query]
        return self.sink.store(step, planned, chosen, lambda: self._gathered.stored_bits(slabs, kept))

    def drop(self, planned: PlannedRows, chosen: NDArray[np.bool_], reason: Reason) -> None:
        """Count planned rows as lost: queries, and K and V that were to be kept for attention alone."""
        self.sink.drop(planned, chosen & planned.has_query, reason)
        if self.context is not None:
            self.context.drop(planned, chosen & ~planned.is_sampled, reason)

    def give_up(self, error: Exception) -> None:
        """Let the step's queries be counted as lost."""
        self._places = None
        if not self._is_fault_logged:
            self._is_fault_logged = True
            logger.error("kvtrace: queries are lost, serving and the capture of K and V go on (logged once): "
                         "%s", error, exc_info=error)  # fmt: skip

    def _rows_of(self, group: int, selection: RowSelection) -> torch.Tensor:
        """Return the batch rows of the step's queries, once a step and group."""
        if group not in self._rows:
            places = self._places
            assert places is not None
            if selection.rows.is_cuda:
                places = places.pin_memory().to(selection.rows.device, non_blocking=True)
            self._rows[group] = selection.rows[places]
        return self._rows[group]
