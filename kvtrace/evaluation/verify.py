"""`--verify`: the same sums by both paths, compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.errors import ReplayMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.evaluation.sums import TensorSums

RELATIVE_TOLERANCE: Final = 1e-9
"""Of squared sums, which are added in another order. Counts must be equal."""
_VALUE_COUNTS: Final = ("num_vectors", "num_values", "num_nonfinite", "max_code")
_ERROR_COUNTS: Final = ("num_out_of_range", "num_clipped", "num_flushed")
_ERROR_SQUARES: Final = ("sum_sq_error", "sum_sq_clip_error")


def check_equal(profiled: Iterable[TensorSums], direct: Iterable[TensorSums]) -> None:
    """Raise ReplayMismatchError unless both hold the same layers with equal counts and squared sums."""
    by_tensor = {(sums.layer, sums.tensor): sums for sums in direct}
    for sums in profiled:
        other = by_tensor.pop((sums.layer, sums.tensor), None)
        if other is None:
            raise ReplayMismatchError(f"layer {sums.layer} {sums.tensor}: the element-wise replay lacks it")
        _compare(sums, other)
    if by_tensor:
        layer, tensor = min(by_tensor)
        raise ReplayMismatchError(f"layer {layer} {tensor}: the profile lacks it")


def _compare(sums: TensorSums, other: TensorSums) -> None:
    pairs = [(name, sums.values, other.values, 0.0) for name in _VALUE_COUNTS]
    pairs += [("sum_sq_signal", sums.values, other.values, RELATIVE_TOLERANCE)]
    errors = [(name, sums.errors, other.errors, 0.0) for name in _ERROR_COUNTS]
    errors += [(name, sums.errors, other.errors, RELATIVE_TOLERANCE) for name in _ERROR_SQUARES]
    for name, left, right, tolerance in (*pairs, *errors):
        a, b = np.asarray(getattr(left, name)), np.asarray(getattr(right, name))
        differs = ~np.isclose(a, b, rtol=tolerance, atol=0)
        if differs.any():
            place = tuple(int(i) for i in np.argwhere(differs)[0])
            raise ReplayMismatchError(
                f"layer {sums.layer} {sums.tensor}, {name}[{', '.join(map(str, place))}]: the profile gives "
                f"{a[place]!r}, the element-wise replay {b[place]!r}; please report this with the trace"
            )
