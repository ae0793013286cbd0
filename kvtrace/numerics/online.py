"""Caches that choose a scale for every token and head while serving, instead of one beforehand.

Source: the rules of vLLM's per-token-head FP8 cache and of LMDeploy's int8 cache: the scale is the vector's
absmax over the largest code, at least 1e-6; values are multiplied by its reciprocal. Each scale is a float32
in the cache: 4 bytes more per token, head and tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvtrace.errors import InputError
from kvtrace.numerics.formats import E4M3FN

SCALE_BYTES: Final = 4
SMALLEST_SCALE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class OnlinePolicy:
    """One such cache."""

    name: str
    format: str
    """e4m3fn or int8."""
    max_value: float
    vllm_dtype: str
    """vLLM's cache dtype that is such a cache."""


ONLINE_POLICIES: Final = {
    policy.name: policy
    for policy in (
        OnlinePolicy("fp8-per-token-head", "e4m3fn", E4M3FN.max_value, "fp8_per_token_head"),
        OnlinePolicy("int8-per-token-head", "int8", 127.0, "int8_per_token_head"),
    )
}


def find_policy(name: str) -> OnlinePolicy:
    """Return the policy called `name`. Raises InputError for any other name."""
    if name not in ONLINE_POLICIES:
        raise InputError(f"online policy {name!r} is unknown; expected one of {', '.join(ONLINE_POLICIES)}")
    return ONLINE_POLICIES[name]
