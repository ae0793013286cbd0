"""How a scale follows from counted magnitudes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvtrace.calibration.bfloat16 import nearest_bfloat16
from kvtrace.calibration.mse_search import E4M3_MAX, SMALLEST_SCALE, least_error_scale
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from kvtrace.calibration.magnitudes import Magnitudes
    from kvtrace.scales.artifact import Granularity

Method = Literal["absmax", "percentile", "mse"]
DEAD_GROUP_SCALE = 1.0
"""Of a group without any value other than 0: every scale is as good, and this one is every engine's
default."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices of one calibration. Raises InputError where they contradict each other."""

    method: Method = "absmax"
    percentile: float | None = None
    """With method `percentile`: of the magnitudes, in (0, 100]."""
    headroom: float = 1.0
    """Factor on the scale, after the method."""
    granularity: Granularity = "attn_head"
    merge_kv: bool = False
    """One scale for K and V, from both together."""
    power_of_two: bool = False
    """Round up to a power of two; `mse` searches among them."""
    engine: str = "vllm-cuda"
    """Whose rounding `mse` minimizes."""

    def __post_init__(self) -> None:
        """Check the choices against each other."""
        if (self.percentile is not None) != (self.method == "percentile"):
            raise InputError(
                "--percentile belongs to --method percentile, which needs it: --percentile 99.99"
            )
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise InputError(f"percentile is {self.percentile:g}, expected more than 0 and at most 100")
        if not (math.isfinite(self.headroom) and self.headroom > 0):
            raise InputError(f"headroom is {self.headroom:g}, expected a factor > 0, such as 2")


def scale_by(recipe: Recipe, magnitudes: Magnitudes, *, dtype: str = "bfloat16") -> float:
    """Return the scale of one group, as bfloat16 stores it. dtype: the captured one, for `mse`.

    >>> import numpy as np
    >>> from kvtrace.calibration.magnitudes import Magnitudes
    >>> group = Magnitudes(np.array([1.0, 448.0]), np.array([99, 1]))
    >>> scale_by(Recipe(), group), scale_by(Recipe(headroom=2.0), group)
    (1.0, 2.0)
    """
    if magnitudes.amax == 0:
        return DEAD_GROUP_SCALE
    if recipe.method == "mse":
        scale = least_error_scale(
            magnitudes, engine=recipe.engine, dtype=dtype, power_of_two=recipe.power_of_two
        )
    elif recipe.method == "percentile":
        # A percentile of 0 would leave no range at all; the smallest non-zero magnitude is the least that
        # makes sense.
        least = float(magnitudes.values[magnitudes.values > 0][0])
        scale = max(magnitudes.percentile(recipe.percentile or 100.0), least) / E4M3_MAX
    else:
        scale = magnitudes.amax / E4M3_MAX
    scale *= recipe.headroom
    if recipe.power_of_two:
        scale = 2.0 ** math.ceil(math.log2(scale) - 1e-12)
    return max(float(nearest_bfloat16([scale])[0]), SMALLEST_SCALE)
