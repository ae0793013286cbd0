"""lmdeploy_int8 and lmdeploy_int4: uniform codes over a scale and a zero-point of each token and head.

Source: LMDeploy of August 2026, `pytorch/kernels/cuda/fill_kv_cache.py` (`_quant_int8`, `_quant_int4`) and
`pytorch/engine/cache_engine.py`: `quant_policy` 8 and 4. Scale and zero-point are kept in the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.formats.coding import RowCoding
from kvtrace.formats.format import CacheFormat, Place

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel


@dataclass(frozen=True, slots=True)
class ZeroPoint(RowCoding):
    """(code − zero-point) · scale, scale = (max − min) / (2^bits − 1)."""

    bits: int

    def num_bytes(self, head_dim: int) -> int:
        """Return the codes' bytes, two for the scale and two for the zero-point."""
        return head_dim * self.bits // 8 + 4

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with an odd length."""
        odd = head_dim % (8 // self.bits)
        return f"head size {head_dim} is odd; two codes share a byte" if odd else None

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:  # noqa: ARG002 -- it has its own
        """Return the values."""
        from kvtrace.formats.tensors.lmdeploy import round_trip

        return round_trip(x, self.bits)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.lmdeploy import kernel

        return kernel(self.bits, dtype)


_PLACES: Final = (Place("LMDeploy PyTorch", "CUDA"),)
FORMATS: Final = (
    CacheFormat("lmdeploy_int8", ZeroPoint(8), ZeroPoint(8), _PLACES, product="lmdeploy"),
    CacheFormat("lmdeploy_int4", ZeroPoint(4), ZeroPoint(4), _PLACES, product="lmdeploy"),
)
