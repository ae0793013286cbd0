"""The FP8 formats of a KV cache, as numbers: nothing here computes on tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvtrace.errors import InputError

Rounding = Literal["nearest", "truncate"]
"""`nearest`: round half to even. `truncate`: toward zero."""


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """One 8-bit float format.

    Magnitudes are m · 2^(e − mantissa_bits) with e ≥ min_exponent; `max_value` is the largest finite one.
    Source: OCP OFP8 (e4m3fn, e5m2); LLVM's Float8E4M3FNUZ, AMD's CDNA 3 ISA (e4m3fnuz).
    """

    name: str
    mantissa_bits: int
    min_exponent: int
    """Exponent of the smallest normal value; subnormals share it."""
    max_value: float
    max_code: int
    """Code of +max_value."""
    torch_dtype: str
    """Attribute of torch."""
    has_negative_zero: bool
    vllm_dtype: str
    """vLLM's cache dtype that asks for it."""

    @property
    def is_fnuz(self) -> bool:
        """Return whether it is one of AMD's gfx94x, where vLLM doubles the scales that it loads."""
        return not self.has_negative_zero

    @property
    def smallest_subnormal(self) -> float:
        """Return the smallest positive value.

        >>> FORMATS["e4m3fn"].smallest_subnormal == 2.0**-9
        True
        """
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @property
    def exponent_bias(self) -> int:
        """Return the bias of the stored exponent: a stored 1 means `min_exponent`."""
        return 1 - self.min_exponent

    def clip_threshold(self, rounding: Rounding) -> float:
        """Return where rounding leaves max_value, were there room for larger values.

        nearest: half a step above it, and values *beyond* are clipped. truncate: a whole step above it, and
        values *from there on* are clipped.

        >>> FORMATS["e4m3fn"].clip_threshold("nearest"), FORMATS["e4m3fn"].clip_threshold("truncate")
        (464.0, 480.0)
        >>> FORMATS["e5m2"].clip_threshold("nearest"), FORMATS["e4m3fnuz"].clip_threshold("nearest")
        (61440.0, 248.0)
        """
        max_exponent = int(self.max_value).bit_length() - 1
        step = 2.0 ** (max_exponent - self.mantissa_bits)
        return self.max_value + (step / 2 if rounding == "nearest" else step)


E4M3FN: Final = Fp8Format(
    name="e4m3fn",
    mantissa_bits=3,
    min_exponent=-6,
    max_value=448.0,
    max_code=0x7E,
    torch_dtype="float8_e4m3fn",
    has_negative_zero=True,
    vllm_dtype="fp8_e4m3",
)
E5M2: Final = Fp8Format(
    name="e5m2",
    mantissa_bits=2,
    min_exponent=-14,
    max_value=57344.0,
    max_code=0x7B,
    torch_dtype="float8_e5m2",
    has_negative_zero=True,
    vllm_dtype="fp8_e5m2",
)
E4M3FNUZ: Final = Fp8Format(
    name="e4m3fnuz",
    mantissa_bits=3,
    min_exponent=-7,
    max_value=240.0,
    max_code=0x7F,
    torch_dtype="float8_e4m3fnuz",
    has_negative_zero=False,
    vllm_dtype="fp8_e4m3",
)

FORMATS: Final = {fmt.name: fmt for fmt in (E4M3FN, E5M2, E4M3FNUZ)}


def find_format(name: str) -> Fp8Format:
    """Return the format called `name`. Raises InputError for any other name."""
    if name not in FORMATS:
        raise InputError(f"FP8 format {name!r} is unknown; expected one of {', '.join(FORMATS)}")
    return FORMATS[name]
