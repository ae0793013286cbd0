"""online: a cache that scales every token and head by its own absmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import AppliedScales, scale_keys
from kvtrace.candidates.candidate import Candidate
from kvtrace.numerics.online import SCALE_BYTES, find_policy
from kvtrace.numerics.vllm_platforms import fp8_format_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.candidate import Asked
    from kvtrace.numerics.online import OnlinePolicy
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class OnlineScales(Candidate):
    """Scales chosen while serving, called by their policy: fp8-per-token-head or int8-per-token-head.

    Raises InputError: an unknown policy.
    """

    kind: ClassVar[str] = "online"

    def __post_init__(self) -> None:
        find_policy(self.name)

    @property
    def policy(self) -> OnlinePolicy:
        """Return the policy."""
        return find_policy(self.name)

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return no scale beforehand for any head, and a note on what scales per token cost."""
        values = dict.fromkeys(scale_keys(trace))
        dims = {d for layer in trace.layers.values() for d in (layer.head_dim_k, layer.head_dim_v)}
        extra = " to ".join(
            f"{100 * SCALE_BYTES / dim:.1f} %" for dim in sorted({max(dims), min(dims)}, reverse=True)
        )
        note = (
            f"its scales take {SCALE_BYTES} bytes per token, head and tensor: {extra} more than the codes "
            "alone"
        )
        origins = dict.fromkeys(values, self.name)
        return AppliedScales(self, values, origins, "token_head", note, hypothetical=not self._ran_in(trace))

    def _ran_in(self, trace: Trace) -> bool:
        """Return whether every captured layer's cache was the policy's, in the policy's format."""
        engine, policy = trace.record.engine, self.policy
        native = fp8_format_on(trace.platform, engine.device, engine.compute_capability)
        return trace.cache_dtypes == (policy.vllm_dtype,) and policy.format in (native, "int8")

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield one per policy; a repeated one counts once."""
        for policy in dict.fromkeys(asked.policies):
            yield cls(policy)
