"""What is served: BF16, more than once, and caches of other dtypes, some with checkpoints of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

BF16: Final = "bf16"
_SPEC: Final = re.compile(r"(?:(?P<name>[\w.-]{1,64}):)?(?P<dtype>[a-z0-9_]{1,40})(?:=(?P<model>.+))?")
_RUNS: Final = "abcdefghijklmnopqrstuvwxyz"
_FP8_NAMES: Final = frozenset({"fp8", "fp8_e4m3"})
"""Two names of one format."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One engine to come."""

    name: str
    dtype: str
    """`bf16`, or one that vLLM's `kv_cache_dtype` takes."""
    model: str | None
    """Another checkpoint than the common one, such as one with calibrated scales."""

    def engine(self) -> dict[str, Any]:
        """Return the arguments of `vllm.LLM` that make it. A checkpoint's own wish for FP8 is no BF16."""
        return {"kv_cache_dtype": "bfloat16" if self.dtype == BF16 else self.dtype}

    def not_as_asked(self, facts: dict[str, Any]) -> str | None:
        """Return what the engine serves instead, in words; None: what was asked for.

        facts: dtype, and cache_dtypes of its layers, as the engine told them. Layers may be left out of a
        quantized cache; all of them may not.
        """
        served = set(facts["cache_dtypes"])
        if self.dtype == BF16:
            plain = {facts["dtype"] if one == "auto" else one for one in served}
            return None if plain <= {"bfloat16"} else f"the engine serves {', '.join(sorted(plain))}"
        wanted = _FP8_NAMES if self.dtype in _FP8_NAMES else {self.dtype}
        return None if served & wanted else f"the engine serves {', '.join(sorted(served))}"


def parse_variants(texts: Sequence[str]) -> tuple[Variant, ...]:
    """Return the variants of `bf16`, `DTYPE`, `DTYPE=DIR` or `NAME:DTYPE=DIR`; BF16 is numbered a, b, ….

    Raises InputError: one is none of these, a name is there twice, or none is BF16, which all are compared
    with.

    >>> [one.name for one in parse_variants(["bf16", "bf16", "fp8=out", "halved:fp8=out2"])]
    ['bf16-a', 'bf16-b', 'fp8', 'halved']
    """
    found: list[Variant] = []
    for text in texts:
        matched = _SPEC.fullmatch(text)
        if matched is None:
            raise InputError(
                f"--variant {text!r}: expected bf16, DTYPE, DTYPE=DIR or NAME:DTYPE=DIR, such as fp8=out"
            )
        dtype, name = matched["dtype"], matched["name"]
        if name is None:
            many = sum(one.dtype == BF16 for one in found)
            name = f"{BF16}-{_RUNS[many % len(_RUNS)]}" if dtype == BF16 else dtype
        if any(one.name == name for one in found):
            raise InputError(
                f"--variant {text!r}: the name {name} is there twice; give it one, as NAME:{text}"
            )
        found.append(Variant(name, dtype, matched["model"]))
    if not found or found[0].dtype != BF16:
        raise InputError("--variant: the first one must be bf16, which the others are compared with")
    return tuple(found)


def checkpoint(variant: Variant, model: str) -> str:
    """Return the checkpoint that a variant serves. Raises InputError: its folder is not there."""
    if variant.model is None:
        return model
    if not (Path(variant.model) / "config.json").is_file():
        raise InputError(
            f"--variant {variant.name}: {variant.model} has no config.json, so it is not a checkpoint"
        )
    return variant.model
