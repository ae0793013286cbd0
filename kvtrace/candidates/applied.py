"""A candidate bound to a trace: one scale per layer, KV head and tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.candidates.captured import effective_values, is_written_by
from kvtrace.errors import InvalidCandidateError
from kvtrace.numerics import find_pair

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.candidates.candidate import Candidate
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.formats.coding import RowCoding
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class AppliedScales:
    """A candidate's scales for one trace, checked: each value is a float32 > 0 with a finite range."""

    candidate: Candidate
    values: Mapping[ScaleKey, float | None]
    """Dequantization multipliers; None: not quantized, or chosen while serving."""
    origins: Mapping[ScaleKey, str]
    """File and key, `effective`, `unit`, `given`, `skipped`, `unquantized` or the cache format."""
    granularity: str | None
    """tensor, attn_head or token_head as applied; None: nothing is quantized."""
    note: str | None
    hypothetical: bool
    """Whether the captured engine used other scales, or wrote its cache in another way."""
    codings: Mapping[tuple[int, str], RowCoding] = field(default_factory=dict)
    """(layer, "k" | "v") → how vectors are coded there, where it is not static FP8 or nothing at all."""
    setups: Mapping[tuple[int, str], ServingSetup] | None = None
    """(layer, "k" | "v") → how static FP8 is written there; None: by the candidate's setup everywhere."""

    def setup_of(self, layer: int, tensor: str) -> ServingSetup | None:
        """Return how static scales are applied there; None where there are none."""
        return self.candidate.setup if self.setups is None else self.setups.get((layer, tensor))

    def has_range(self, layer: int, tensor: str) -> bool:
        """Return whether values of K or V can be out of range there at all.

        Nothing is lost in a layer left native: no count where the candidate's other layers have no range.
        """
        coding = self.codings.get((layer, tensor))
        if coding is not None:
            return coding.limits is not None
        coded = [one for (_, name), one in self.codings.items() if name == tensor]
        has_static = any(name == tensor for _, name in self.setups or ())
        return not coded or has_static or any(one.limits is not None for one in coded)

    def of_heads(self, layer: int, tensor: str, kv_heads: Sequence[int]) -> list[float] | None:
        """Return the multipliers of these heads; None where the tensor is not quantized."""
        values = [self.values[layer, head, tensor] for head in kv_heads]
        return None if None in values else values  # type: ignore[return-value]


def static_scales(
    candidate: Candidate,
    trace: Trace,
    values: Mapping[ScaleKey, float | None],
    origins: Mapping[ScaleKey, str],
    *,
    granularity: str | None = None,
    note: str | None = None,
    setup: ServingSetup | None = None,
) -> AppliedScales:
    """Return a candidate's scales as its setup applies them: in float32, with the layers that it skips.

    values: one per key of `scale_keys`; None: not quantized. granularity: None: as the values tell. setup:
    None: the candidate's.
    Raises InvalidCandidateError: a scale is 0, negative, NaN, inf or too large for the format.
    """
    setup = setup or candidate.setup
    assert setup is not None, "static scales are applied by a setup"
    is_skipped = {key: key[0] in setup.skip_layers for key in values}
    applied = {key: None if is_skipped[key] else _float32(value) for key, value in values.items()}
    stated = {key: "skipped" if is_skipped[key] else origin for key, origin in origins.items()}
    _require_usable(applied, stated, setup)
    is_what_ran = (
        trace.cache_kind == "static_fp8"
        and applied == effective_values(trace)
        and is_written_by(setup, trace)
    )
    return AppliedScales(
        candidate,
        applied,
        stated,
        granularity or _granularity(applied),
        note,
        hypothetical=not is_what_ran,
    )


def scale_keys(trace: Trace) -> Iterator[ScaleKey]:
    """Yield the layers, global KV heads and tensors that a trace has."""
    for layer in trace.layers.values():
        for head in layer.kv_heads:
            for tensor in ("k", "v"):
                yield layer.index, head, tensor


def _require_usable(
    values: Mapping[ScaleKey, float | None], origins: Mapping[ScaleKey, str], setup: ServingSetup
) -> None:
    _, fmt = find_pair(setup.engine, setup.fp8_format)
    largest = float(np.finfo(np.float32).max) / fmt.max_value
    for (layer, head, tensor), value in values.items():
        if value is not None and not 0 < value <= largest:  # true for NaN too
            raise InvalidCandidateError(
                f"the {tensor} scale of layer {layer}, KV head {head} is {value:g} "
                f"({origins[layer, head, tensor]}); expected a number > 0 and at most {largest:.2g}, so that "
                f"{fmt.max_value:g} × scale is a float32",
                "unusable-value",
            )


def _granularity(values: Mapping[ScaleKey, float | None]) -> str | None:
    """Tell the granularity from the values: attn_head where the heads of any layer and tensor differ."""
    per_tensor: dict[tuple[int, str], set[float]] = {}
    for (layer, _, tensor), value in values.items():
        if value is not None:
            per_tensor.setdefault((layer, tensor), set()).add(value)
    if not per_tensor:
        return None
    return "attn_head" if any(len(found) > 1 for found in per_tensor.values()) else "tensor"


def _float32(value: float | None) -> float | None:
    if value is None:
        return None
    with np.errstate(over="ignore"):
        return float(np.float32(value))
