"""The number format that KV-cache scales were made for, and the magnitude that one unit of scale covers.

Source: compressed-tensors' and ModelOpt's schemes, Quark's and TensorRT-LLM's dtype names, vLLM 0.32
(`MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP`), msModelSlim's C8.
"""

from __future__ import annotations

from typing import Final, Literal

from kvtrace.numerics.formats import E4M3FN

NumberFormat = Literal[
    "fp8", "int8", "int8-per-channel", "nvfp4", "fp8-k-nvfp4-v", "mixed", "none", "unknown"
]
"""none: the layer is left in the model's dtype. mixed: layers differ."""
K_FP8_V_NVFP4: Final = "fp8-k-nvfp4-v"


def is_global(number_format: NumberFormat, tensor: str) -> bool:
    """Return whether a scale of K or V stands above scales of blocks. tensor: k or v.

    >>> is_global("nvfp4", "k"), is_global("fp8-k-nvfp4-v", "k"), is_global("fp8-k-nvfp4-v", "v")
    (True, False, True)
    """
    return number_format == "nvfp4" or (number_format == K_FP8_V_NVFP4 and tensor == "v")


COVERED: Final[dict[NumberFormat, float]] = {
    "fp8": E4M3FN.max_value,
    "int8": 127.0,
    "int8-per-channel": 127.0,
}
"""Largest magnitude over scale. NVFP4's follows from block scales that are made while serving."""
_FP8: Final = ("fp8", "float8", "e4m3", "static")
_MIXED: Final = ("mixed_precision", "mixed")


def named_format(algorithm: str) -> NumberFormat:
    """Return the format that a configuration names by an algorithm or dtype.

    >>> named_format("FP8"), named_format("float8_e4m3fn"), named_format("int8"), named_format("NVFP4")
    ('fp8', 'fp8', 'int8', 'nvfp4')
    """
    name = algorithm.lower()
    if name == "fp8_k_nvfp4_v":
        return K_FP8_V_NVFP4
    if name.startswith("nvfp4"):
        return "nvfp4"
    if name.startswith("int8"):
        return "int8"
    if name in _MIXED:
        return "mixed"
    return "fp8" if name.startswith(_FP8) else "unknown"


def scheme_format(num_bits: int | None, kind: str | None) -> NumberFormat:
    """Return the format of a scheme with `num_bits` and `type`.

    >>> scheme_format(8, "float"), scheme_format(8, "int"), scheme_format(4, "float")
    ('fp8', 'int8', 'nvfp4')
    """
    known: dict[tuple[int | None, str | None], NumberFormat] = {
        (8, "float"): "fp8",
        (8, "int"): "int8",
        (4, "float"): "nvfp4",
    }
    return known.get((num_bits, kind), "unknown")
