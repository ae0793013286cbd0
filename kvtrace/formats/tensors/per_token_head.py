"""fp8_per_token_head and int8_per_token_head in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kvtrace.formats.tensors.steps import e4m3, half_away

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST_SCALE: Final = 1e-6
_LARGEST: Final = {"e4m3fn": 448.0, "int8": 127.0}


def round_trip(x: Tensor, codes: Literal["e4m3fn", "int8"]) -> Tensor:
    """Return what the cache gives back, float32. x: [..., head_dim].

    >>> import torch
    >>> round_trip(torch.tensor([127.0, 0.5, -1.5, 0.4]), "int8").tolist()
    [127.0, 1.0, -2.0, 0.0]
    """
    wide, largest = x.float(), _LARGEST[codes]
    scale = (wide.abs().amax(-1, keepdim=True) / largest).clamp_(min=SMALLEST_SCALE)
    y = wide * scale.reciprocal()
    rounded = half_away(y).clamp_(-largest - 1, largest) if codes == "int8" else e4m3(y)
    return rounded * scale
