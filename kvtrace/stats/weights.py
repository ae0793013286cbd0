"""What a captured row stands for, so that strata sampled at different rates can be pooled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def row_weights(position_stride: ArrayLike, request_fraction: ArrayLike) -> NDArray[np.float64]:
    """Return how many positions of the traffic one captured row stands for: stride / fraction.

    One pair per sampling_id; NaN where a fraction is 0, since such rules capture nothing. Rows lost to a
    budget have no weight: nothing makes up for them, and their requests are marked incomplete. The view
    `sampling` of queries/views.sql computes the same.

    >>> row_weights([16, 1], [1.0, 0.25]).tolist()
    [16.0, 4.0]
    """
    stride = np.asarray(position_stride, dtype=np.float64)
    fraction = np.asarray(request_fraction, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(fraction > 0, stride / fraction, np.nan))
