"""Captured K and V of a real model against Hugging Face transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.vllm_cpu import MAX_DISTANCE_RATIO
from support.vllm_prompts import ONE_BY_ONE
from support.vllm_reference import distances_from_fp32

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from support.vllm_engines import Captured

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def distances(model: Path, captured: Captured) -> NDArray[np.float64]:
    trace, rounds, _ = captured
    return distances_from_fp32(model, trace, {n: rounds[n][0] for n in range(len(ONE_BY_ONE))})


@pytest.mark.parametrize(("tensor", "name"), [(0, "k"), (1, "v")])
def test_every_layer_is_as_near_to_fp32_as_a_bf16_forward_is(
    distances: NDArray[np.float64], tensor: int, name: str
) -> None:
    ratio = distances[:, tensor, 0] / distances[:, tensor, 1]
    print(f"{name}: captured / bf16 distance from fp32, by layer:", np.round(ratio, 3))
    assert len(ratio) == 30
    assert ratio.max() <= MAX_DISTANCE_RATIO
