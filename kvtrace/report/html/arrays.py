"""Number arrays as small text for a page: quantized, deflated, base64.

The page undoes it with the browser's own DecompressionStream, so a file that holds a million numbers needs
no library for them. `templates/arrays.js` is the other side.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MISSING: Final = 0xFFFF
_LEVEL: Final = 6


def pack_exact(array: NDArray[Any]) -> dict[str, Any]:
    """Return the array as it is. NaN: not measured."""
    return _packed("f8", np.ascontiguousarray(array, dtype="<f8"), array.shape)


def pack_counts(array: NDArray[Any]) -> dict[str, Any]:
    """Return non-negative integers; those of 65,534 and more are shown as that."""
    return _packed("u2", np.minimum(array, _MISSING - 1).astype("<u2"), array.shape)


def pack_shares(array: NDArray[Any], step: float = 0.005) -> dict[str, Any]:
    """Return values ≥ 0 on a logarithmic grid whose neighbours differ by `step`; 0 stays 0, NaN not measured.

    Half a step is the largest relative error, unless the values span more than 65,533 steps: then it is
    coarser, and the page is told.
    """
    positive = array[np.isfinite(array) & (array > 0)]
    low = float(positive.min()) if positive.size else 1.0
    high = float(positive.max()) if positive.size else 1.0
    num_steps = min(max(math.ceil(math.log(high / low) / math.log1p(step)), 1), _MISSING - 2)
    codes = np.full(array.shape, _MISSING, dtype="<u2")
    codes[array == 0] = 0
    above = np.isfinite(array) & (array > 0)
    span = math.log(high / low) or 1.0
    codes[above] = 1 + np.rint(np.log(array[above] / low) / span * num_steps).astype("<u2")
    return _packed("log", codes, array.shape) | {"low": low, "high": high, "steps": num_steps}


def pack_decibels(array: NDArray[Any], step: float = 0.05) -> dict[str, Any]:
    """Return values on an even grid of `step`; NaN: not measured."""
    finite = array[np.isfinite(array)]
    low = float(finite.min()) if finite.size else 0.0
    codes = np.full(array.shape, _MISSING, dtype="<u2")
    known = np.isfinite(array)
    codes[known] = np.minimum(np.rint((array[known] - low) / step), _MISSING - 1).astype("<u2")
    return _packed("even", codes, array.shape) | {"low": low, "step": step}


def _packed(kind: str, array: NDArray[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    deflated = zlib.compress(array.tobytes(), _LEVEL)
    return {"kind": kind, "shape": list(shape), "data": base64.b64encode(deflated).decode()}
