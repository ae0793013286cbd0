"""Every candidate over a trace's exact counts: its cost no longer depends on the trace's length.

Counts of out-of-range, clipped and flushed values are sums of counters beyond a limit code. Squared errors
are a matrix product, counters [cell, code] × error [code, candidate], in float64. Nothing is approximated:
the result differs from the element-wise replay in the last bits of the squared sums at most.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from kvtrace.evaluation.sums import ErrorSums, TensorSums, ValueSums
from kvtrace.numerics import find_pair
from kvtrace.numerics.casts import magnitudes_of_codes
from kvtrace.numerics.limits import MAX_FINITE_CODE, magnitude_of_codes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from kvtrace.evaluation.prepared import ScaleBatch
    from kvtrace.profile.counts import TensorProfile
    from kvtrace.trace.cells import Cells

_ERRORS_AT_ONCE: Final = {"cpu": 1 << 17, "cuda": 1 << 25}
"""Bounds the temporaries, about 40 bytes per (kv_head, code, candidate); on a CPU they stay in cache."""

_COUNTERS_AT_ONCE: Final = 1 << 22
"""Bounds the counters of the heads that are worked on together, about 60 bytes each."""


def evaluate_tensor(
    tensor: TensorProfile,
    cells: Cells,
    batches: Sequence[ScaleBatch],
    num_candidates: int,
    device: torch.device,
) -> TensorSums:
    """Return the sums of one layer, K or V, for every candidate; 0 errors for those in no batch."""
    codes, record = _finite_codes(tensor), tensor.record
    heads_at_once = max(1, _COUNTERS_AT_ONCE // max(1, tensor.num_cells * len(codes)))
    values, errors = [], []
    for first in range(0, len(record.kv_heads), heads_at_once):
        heads = slice(first, first + heads_at_once)
        part = tensor.of_heads(heads)
        counters = _Counters.of(part, codes, device)
        values.append(counters.value_sums(_num_vectors(part, cells)))
        own = [batch.part(slice(None), heads) for batch in batches]
        errors.append(_errors_of_heads(counters, own, num_candidates, device))
    return TensorSums(
        record.layer,
        record.tensor,
        record.kv_heads,
        record.dtype,
        ValueSums(*_joined(values)),
        ErrorSums(*_joined(errors)),
    )


def _errors_of_heads(
    counters: _Counters, batches: Sequence[ScaleBatch], num_candidates: int, device: torch.device
) -> ErrorSums:
    num_heads, num_cells, num_codes = counters.count.shape
    shape = (num_candidates, num_cells, num_heads)
    counts: list[Any] = [np.zeros(shape, np.int64) for _ in range(3)]
    squares: list[Any] = [np.zeros(shape, np.float64) for _ in range(2)]
    at_once = max(8, _ERRORS_AT_ONCE[device.type] // max(1, num_heads * num_codes))
    for batch in batches:
        for first in range(0, len(batch.numbers), at_once):
            part = batch.part(slice(first, first + at_once))
            for target, found in zip((*counts, *squares), counters.error_sums(part), strict=True):
                target[part.numbers] = found.permute(2, 1, 0).cpu().numpy()
    return ErrorSums(*counts, *squares)


def _joined(parts: Sequence[Any]) -> Iterator[Any]:
    """Yield every field of the parts, joined along the KV heads, their last axis."""
    for field in fields(parts[0]):
        arrays = [getattr(part, field.name) for part in parts]
        yield arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)


def _finite_codes(tensor: TensorProfile) -> Any:
    """Return the finite codes that occur in any head or cell, descending."""
    occurs = np.zeros(1 << 15, bool)
    occurs[tensor.code] = True
    occurs[MAX_FINITE_CODE[tensor.record.dtype] + 1 :] = False
    return np.flatnonzero(occurs)[::-1].copy()


def _num_vectors(tensor: TensorProfile, cells: Cells) -> Any:
    present = tensor.is_present
    per_head = [np.bincount(cells.of_token[p], minlength=len(cells)) for p in present.T]
    return np.stack(per_head, axis=1)


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters of one layer, K or V, dense over the finite codes that occur, largest first."""

    code: Tensor
    """[code] int64, descending."""
    magnitude: Tensor
    """[code], in the captured dtype."""
    count: Tensor
    """[kv_head, cell, code] float64; counts are exact in it."""
    beyond: tuple[Tensor, Tensor, Tensor]
    """Σ n, Σ n·x and Σ n·x² over the first i codes, the largest, [kv_head, cell, i]. Added from the largest
    on, so that the few values beyond a limit keep their precision."""
    num_zeros: Tensor
    """[kv_head, cell, 1] float64."""
    nonfinite: Tensor
    """[kv_head, cell] int64."""

    @classmethod
    def of(cls, tensor: TensorProfile, codes: Any, device: torch.device) -> _Counters:
        record = tensor.record
        num_heads, num_cells = len(record.kv_heads), tensor.num_cells
        num_segments = num_heads * num_cells
        segment = np.repeat(np.arange(num_segments), np.diff(tensor.start))
        code, count = tensor.code, tensor.count
        finite = code <= MAX_FINITE_CODE[record.dtype]
        nonfinite = np.bincount(segment[~finite], count[~finite], num_segments).astype(np.int64)
        if not finite.all():
            segment, code, count = segment[finite], code[finite], count[finite]
        place = np.zeros(1 << 15, np.int64)
        place[codes] = np.arange(len(codes))
        dense = np.zeros(num_segments * len(codes))
        dense[segment * len(codes) + place[code]] = count

        n = torch.from_numpy(dense).to(device).view(num_heads, num_cells, len(codes))
        on_device = torch.from_numpy(codes).to(device)
        magnitude = magnitude_of_codes(on_device, record.dtype)
        nx = n * magnitude.double()
        has_zero = len(codes) > 0 and codes[-1] == 0
        return cls(
            on_device,
            magnitude,
            n,
            (_summed(n), _summed(nx), _summed(nx * magnitude.double())),
            n[..., -1:] if has_zero else n.new_zeros(num_heads, num_cells, 1),
            torch.from_numpy(nonfinite).to(device).view(num_heads, num_cells),
        )

    def value_sums(self, num_vectors: Any) -> ValueSums:
        num_values, _, squares = (sums[..., -1].T.cpu().numpy() for sums in self.beyond)
        if len(self.code):
            largest = torch.where(self.count > 0, self.code, -1).amax(-1)
        else:
            largest = torch.full_like(self.nonfinite, -1)
        return ValueSums(
            num_vectors,
            num_values.astype(np.int64),
            self.nonfinite.T.cpu().numpy(),
            squares,
            largest.T.cpu().numpy(),
        )

    def error_sums(self, batch: ScaleBatch) -> tuple[Tensor, ...]:
        """Return out of range, clipped, flushed, error and clip error, each [kv_head, cell, candidate]."""
        engine, fmt = find_pair(batch.setup.engine, batch.setup.fp8_format)
        (out_of_range,) = self._beyond(batch.in_range, 1)
        clipped, clipped_x, clipped_x2 = self._beyond(batch.unclipped, 3)
        (not_flushed,) = self._beyond(batch.flushed, 1)
        flushed = self.beyond[0][..., -1:] - self.num_zeros - not_flushed
        scale = batch.scale.T.contiguous()[:, :, None]
        # All clipped values come back as the same one, c: Σ(x − c)² needs their number and moments alone.
        c = (scale * fmt.max_value).double().transpose(1, 2)
        clip_error = (clipped_x2 - 2 * c * clipped_x + c * c * clipped).clamp_(min=0)
        restored = magnitudes_of_codes(engine.to_codes(engine.scale_down(self.magnitude, scale), fmt), fmt)
        errors = (self.magnitude.double() - restored.mul_(scale)).square_()
        # This order, [kv_head, candidate, code], runs at full speed for any number of candidates.
        error = torch.bmm(errors, self.count.transpose(1, 2)).transpose(1, 2)
        return out_of_range, clipped, flushed, error, clip_error

    def _beyond(self, limit: Tensor, moments: int) -> list[Tensor]:
        """Return the moments beyond the limits [candidate, kv_head], each [kv_head, cell, candidate]."""
        num_beyond = len(self.code) - torch.searchsorted(self.code.flip(0), limit.T.contiguous(), right=True)
        index = num_beyond[:, None, :].expand(-1, self.count.shape[1], -1)
        return [sums.gather(2, index) for sums in self.beyond[:moments]]


def _summed(values: Tensor) -> Tensor:
    """Return the sums over the first 0, 1, … of the last axis, one longer than it."""
    sums = values.new_zeros(*values.shape[:-1], values.shape[-1] + 1)
    torch.cumsum(values, -1, out=sums[..., 1:])
    return sums
