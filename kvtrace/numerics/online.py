"""Caches that choose a scale for every token and head while serving, instead of one beforehand.

Source: the rules of vLLM's per-token-head FP8 cache and of LMDeploy's int8 cache: the scale is the vector's
absmax over the largest code, at least 1e-6; values are multiplied by its reciprocal. Each scale is a float32
in the cache: 4 bytes more per token, head and tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from kvtrace.errors import InputError
from kvtrace.numerics.casts import nearest_codes, values_of_codes
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from torch import Tensor

SCALE_BYTES: Final = 4
_SMALLEST_SCALE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class OnlinePolicy:
    """One such cache."""

    name: str
    format: str
    """e4m3fn or int8."""
    max_value: float


ONLINE_POLICIES: Final = {
    policy.name: policy
    for policy in (
        OnlinePolicy("fp8-per-token-head", "e4m3fn", E4M3FN.max_value),
        OnlinePolicy("int8-per-token-head", "int8", 127.0),
    )
}


def find_policy(name: str) -> OnlinePolicy:
    """Return the policy called `name`. Raises InputError for any other name."""
    if name not in ONLINE_POLICIES:
        raise InputError(f"online policy {name!r} is unknown; expected one of {', '.join(ONLINE_POLICIES)}")
    return ONLINE_POLICIES[name]


def online_round_trip(x: Tensor, policy: OnlinePolicy) -> Tensor:
    """Return what the cache gives back for `x`, float32.

    x: [..., head_dim], bfloat16, float16 or float32. Values that are not finite take no part in their
    vector's absmax; what they come back as is not defined.

    >>> x = torch.tensor([[127.0, 0.5, -1.5, 0.4]])
    >>> online_round_trip(x, ONLINE_POLICIES["int8-per-token-head"]).tolist()
    [[127.0, 1.0, -2.0, 0.0]]
    """
    wide = x.float()
    absmax = torch.where(torch.isfinite(wide), wide, 0).abs().amax(-1, keepdim=True)
    scale = (absmax / policy.max_value).clamp_(min=_SMALLEST_SCALE)
    y = wide * scale.reciprocal()
    if policy.format == "int8":
        half_away = torch.trunc(y + torch.copysign(torch.full_like(y, 0.5), y))
        return half_away.clamp_(-policy.max_value, policy.max_value).mul_(scale)
    return values_of_codes(nearest_codes(y, E4M3FN), E4M3FN).mul_(scale)
