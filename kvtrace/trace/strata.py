"""The strata of a token: phase and position octave. One definition for replay, queries and inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PREFILL: Final = 0
DECODE: Final = 1
PHASES: Final = ("prefill", "decode")


def position_octave(position: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return floor(log2(position)), position 0 counted with 1: octave n holds positions [2^n, 2^(n+1)).

    position: any shape, integer ≥ 0.

    >>> position_octave(np.array([0, 1, 2, 3, 4, 1023, 1024])).tolist()
    [0, 0, 1, 1, 2, 9, 10]
    """
    _, exponent = np.frexp(np.maximum(position, 1).astype(np.float64))
    octave: NDArray[np.int32] = (exponent - 1).astype(np.int32)
    return octave


def phase_code(position: NDArray[np.integer], prompt_tokens: NDArray[np.integer]) -> NDArray[np.int8]:
    """Return PREFILL or DECODE for each token: decode where position ≥ the request's prompt_tokens.

    >>> phase_code(np.array([9, 10]), np.array([10, 10])).tolist()
    [0, 1]
    """
    return np.where(position >= prompt_tokens, DECODE, PREFILL).astype(np.int8)


def step_octave(position: NDArray[np.integer], prompt_tokens: int) -> NDArray[np.int32]:
    """Return floor(log2(n)) for the n-th generated token of a request, counted from 1; -1 in the prompt.

    >>> step_octave(np.array([3, 4, 5, 6, 7]), prompt_tokens=4).tolist()
    [-1, 0, 1, 1, 2]
    """
    generated = position.astype(np.int64) - prompt_tokens + 1
    octaves: NDArray[np.int32] = np.where(generated > 0, position_octave(generated), -1).astype(np.int32)
    return octaves
