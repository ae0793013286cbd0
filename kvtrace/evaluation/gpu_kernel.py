"""Every candidate over exact counts as dense matrix products, for a GPU; on a CPU the same code is its test.

Counters [cell, code] × error [code, candidate], in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from kvtrace.evaluation.sums import ErrorSums
from kvtrace.numerics import find_pair
from kvtrace.numerics.captured import MAX_FINITE_CODE, magnitudes_of
from kvtrace.numerics.casts import magnitudes_of_codes, scale_down, to_codes
from kvtrace.numerics.limits import max_flushed_code, max_in_range_code, max_unclipped_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from kvtrace.evaluation.scale_batch import ScaleBatch
    from kvtrace.profile.counts import TensorProfile

_ERRORS_AT_ONCE: Final = 1 << 25
"""Bounds the temporaries, about 40 bytes per (kv_head, code, candidate)."""

_COUNTERS_AT_ONCE: Final = 1 << 22
"""Bounds the counters of the heads that are worked on together, about 60 bytes each."""


def error_sums(
    tensor: TensorProfile, batches: Sequence[ScaleBatch], num_candidates: int, device: str
) -> ErrorSums:
    """Return the errors of one layer, K or V, for every candidate; 0 for those in no batch."""
    codes = _finite_codes(tensor)
    shape = (num_candidates, tensor.num_cells, len(tensor.record.kv_heads))
    counts: list[Any] = [np.zeros(shape, np.int64) for _ in range(3)]
    squares: list[Any] = [np.zeros(shape) for _ in range(2)]
    heads_at_once = max(1, _COUNTERS_AT_ONCE // max(1, tensor.num_cells * len(codes)))
    for first in range(0, shape[2], heads_at_once):
        heads = slice(first, min(first + heads_at_once, shape[2]))
        counters = _Counters.of(tensor.of_heads(heads), codes, torch.device(device))
        at_once = max(8, _ERRORS_AT_ONCE // max(1, (heads.stop - first) * len(codes)))
        for batch in batches:
            for start in range(0, len(batch.numbers), at_once):
                part = batch.part(slice(start, start + at_once), heads)
                for target, found in zip((*counts, *squares), counters.error_sums(part), strict=True):
                    target[part.numbers, :, heads] = found.permute(2, 1, 0).cpu().numpy()
    return ErrorSums(*counts, *squares)


def _finite_codes(tensor: TensorProfile) -> NDArray[np.int64]:
    """Return the finite codes that occur in any head or cell, descending."""
    occurs = np.zeros(1 << 15, bool)
    occurs[tensor.code] = True
    occurs[MAX_FINITE_CODE[tensor.record.dtype] + 1 :] = False
    return np.flatnonzero(occurs)[::-1].copy()


@dataclass(frozen=True, slots=True)
class _Counters:
    """The counters of some heads, dense over the finite codes that occur, largest first."""

    dtype: str
    codes: Any
    """[code] numpy int64, descending."""
    magnitude: Tensor
    """[code], in the captured dtype."""
    count: Tensor
    """[kv_head, cell, code] float64; counts are exact in it."""
    beyond: tuple[Tensor, Tensor, Tensor]
    """Σ n, Σ n·x and Σ n·x² over the first i codes, the largest, [kv_head, cell, i]. Added from the largest
    on, so that the few values beyond a limit keep their precision."""
    num_zeros: Tensor
    """[kv_head, cell, 1] float64."""

    @classmethod
    def of(cls, tensor: TensorProfile, codes: NDArray[np.int64], device: torch.device) -> _Counters:
        record = tensor.record
        num_heads, num_cells = len(record.kv_heads), tensor.num_cells
        segment = np.repeat(np.arange(num_heads * num_cells), np.diff(tensor.start))
        finite = tensor.code <= MAX_FINITE_CODE[record.dtype]
        place = np.zeros(1 << 15, np.int64)
        place[codes] = np.arange(len(codes))
        dense = np.zeros(num_heads * num_cells * len(codes))
        dense[(segment * len(codes) + place[tensor.code])[finite]] = tensor.count[finite]

        n = torch.from_numpy(dense).to(device).view(num_heads, num_cells, len(codes))
        x = torch.from_numpy(magnitudes_of(codes, record.dtype)).to(device)
        nx = n * x.double()
        has_zero = len(codes) > 0 and codes[-1] == 0
        return cls(
            record.dtype,
            codes,
            x.to(getattr(torch, record.dtype)),
            n,
            (_summed(n), _summed(nx), _summed(nx * x.double())),
            n[..., -1:] if has_zero else n.new_zeros(num_heads, num_cells, 1),
        )

    def error_sums(self, batch: ScaleBatch) -> tuple[Tensor, ...]:
        """Return out of range, clipped, flushed, error and clip error, each [kv_head, cell, candidate]."""
        names = {"engine": batch.setup.engine, "format": batch.setup.fp8_format}
        engine, fmt = find_pair(*names.values())
        in_range, unclipped, flushed_code = (
            limit(batch.scale.T, self.dtype, **names)
            for limit in (max_in_range_code, max_unclipped_code, max_flushed_code)
        )
        (out_of_range,) = self._beyond(in_range, 1)
        clipped, clipped_x, clipped_x2 = self._beyond(unclipped, 3)
        (not_flushed,) = self._beyond(flushed_code, 1)
        flushed = self.beyond[0][..., -1:] - self.num_zeros - not_flushed
        scale = torch.from_numpy(np.ascontiguousarray(batch.scale.T)).to(self.count.device)[:, :, None]
        # All clipped values come back as the same one, c: Σ(x − c)² needs their number and moments alone.
        c = (scale * fmt.max_value).double().transpose(1, 2)
        clip_error = (clipped_x2 - 2 * c * clipped_x + c * c * clipped).clamp_(min=0)
        codes = to_codes(scale_down(self.magnitude, scale, engine), engine, fmt)
        errors = (self.magnitude.double() - magnitudes_of_codes(codes, fmt).mul_(scale)).square_()
        # This order, [kv_head, candidate, code], runs at full speed for any number of candidates.
        error = torch.bmm(errors, self.count.transpose(1, 2)).transpose(1, 2)
        return out_of_range, clipped, flushed, error, clip_error

    def _beyond(self, limit: NDArray[np.int32], moments: int) -> list[Tensor]:
        """Return the moments beyond the limits [kv_head, candidate], each [kv_head, cell, candidate]."""
        num_beyond = len(self.codes) - np.searchsorted(self.codes[::-1], limit, side="right")
        index = torch.from_numpy(num_beyond).to(self.count.device)
        index = index[:, None, :].expand(-1, self.count.shape[1], -1)
        return [sums.gather(2, index) for sums in self.beyond[:moments]]


def _summed(values: Tensor) -> Tensor:
    """Return the sums over the first 0, 1, … of the last axis, one longer than it."""
    sums = values.new_zeros(*values.shape[:-1], values.shape[-1] + 1)
    torch.cumsum(values, -1, out=sums[..., 1:])
    return sums
