"""Artifacts as small as they can be, by which a rule says what it finds and what it lets be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvtrace.findings.rule import Rule
from kvtrace.numerics.formats import E4M3FN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.findings.artifact.context import AuditContext

    PerTensor = Mapping[str, float | tuple[float, ...]]

AMAX: Final = {"0.k": 8.0, "0.v": 1.0, "1.k": 16.0, "1.v": 2.5}
"""Largest magnitudes of a trace of two layers."""
AMAX_PER_HEAD: Final = {"0.k": (8.0, 2.0), "0.v": (1.0, 4.0), "1.k": (16.0, 4.0), "1.v": (2.5, 10.0)}


def covering(amax: PerTensor, times: float = 1.0) -> PerTensor:
    """Return the scales whose range ends at `times` these magnitudes.

    >>> covering({"0.k": 448.0, "0.v": (224.0, 448.0)})
    {'0.k': 1.0, '0.v': (0.5, 1.0)}
    """
    return {
        name: tuple(_scale(one, times) for one in found) if isinstance(found, tuple) else _scale(found, times)
        for name, found in amax.items()
    }


def _scale(amax: float, times: float) -> float:
    return times * amax / E4M3FN.max_value


@dataclass(frozen=True, kw_only=True)
class ArtifactExample:
    """A compressed-tensors checkpoint, and what it is held against; what is not said is as it should be.

    `0.k` is layer 0's K; a tuple has a number for each of two heads, a number stands for both.
    """

    scales: PerTensor = field(default_factory=lambda: covering(AMAX))
    """Stored. Per head if any is a tuple, unless `scheme` says otherwise."""
    names: Mapping[str, float] = field(default_factory=dict)
    """Further tensors of the checkpoint, by their whole name."""
    stored_as: str = "float32"
    quantization: Mapping[str, Any] | None = None
    """config.json's `quantization_config` in full."""
    scheme: Mapping[str, Any] = field(default_factory=dict)
    """What its `kv_cache_scheme` says otherwise."""
    declared: Mapping[str, int] = field(default_factory=dict)
    """What its model says otherwise."""
    manifest: Mapping[str, Any] | None = None
    """What its `kvtrace.json` says of the model and of the calibration rows; None: there is none."""
    weights: tuple[float, float] | None = None
    """A weight of this checkpoint and of the one that it is compared with."""
    amax: PerTensor | None = None
    """Largest magnitudes in the trace, whose other values are spread evenly below; None: no trace."""
    live: PerTensor | None = None
    """Scales in effect at capture; None: no FP8 was."""
    backend: str | None = None
    cache_dtype: str = "fp8"
    """Of the cache that they are judged for; of nvfp4 the trace's vectors have 16 values, else 8."""
    num_layers: int = 2
    unquantized: tuple[int, ...] = ()
    """Layers that are left in the model's own dtype."""
    calibrated_at_length: int | None = None
    """Of the trace's four positions."""


if TYPE_CHECKING:
    ArtifactRule = Rule[AuditContext, ArtifactExample]
else:
    ArtifactRule = Rule
