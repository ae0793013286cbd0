"""Whether a number is larger where answers were lost: by ranks, with labels drawn anew for all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.stats import rankdata

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_DRAWS: Final = 1_999
_DRAWS_AT_ONCE: Final = 100
_SEED: Final = 20_261_130


@dataclass(frozen=True, slots=True)
class RankTest:
    """Columns against labels; every array is [columns]."""

    auc: NDArray[np.float64]
    """Chance that a lost answer has more than a kept one, ties half; 0.5: no difference."""
    p_value: NDArray[np.float64]
    """That the largest of all columns is so large by chance: corrected for their number. One-sided."""


def rank_test(values: NDArray[np.float64], is_lost: NDArray[np.bool_]) -> RankTest:
    """Compare each column of `values`, [units, columns], between lost and kept units.

    is_lost: [units], with at least one of each. Labels are drawn anew, the same for all columns, so that
    columns that hang together are not counted as independent. Source: Westfall and Young, max-T.
    """
    ranks = rankdata(values, axis=0)
    num_lost, num_units = int(is_lost.sum()), len(is_lost)
    mean = (num_units + 1) / 2
    centred = ranks - mean
    spread = np.sqrt(
        np.sum(centred**2, axis=0) * num_lost * (num_units - num_lost) / (num_units * (num_units - 1))
    )
    scaled = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)
    observed = is_lost.astype(np.float64) @ scaled
    rank_sum = is_lost.astype(np.float64) @ ranks
    auc = (rank_sum - num_lost * (num_lost + 1) / 2) / (num_lost * (num_units - num_lost))
    rng, reached = np.random.default_rng(_SEED), np.zeros(values.shape[1], np.int64)
    for first in range(0, NUM_DRAWS, _DRAWS_AT_ONCE):
        size = min(_DRAWS_AT_ONCE, NUM_DRAWS - first)
        drawn = rng.permuted(np.broadcast_to(is_lost, (size, num_units)), axis=1).astype(np.float64)
        largest = (drawn @ scaled).max(axis=1, initial=-np.inf)
        reached += np.sum(largest[:, None] >= observed - 1e-9, axis=0)
    return RankTest(auc, (1 + reached) / (1 + NUM_DRAWS))
