"""nvfp4 and nvfp4_4over6: e2m1 codes, an e4m3 scale for every 16 values, and the layer's scale above them.

Source: vLLM, `csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu` and `quantization/fp4/nvfp4_utils.cuh`; 4over6:
vLLM pull request 45187. Written from the sources, not run against a GPU. The kernel's reciprocals are
approximate by one ulp: a value that close to a tie may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from kvtrace.formats.coding import Limits, RowCoding
from kvtrace.formats.format import CacheFormat, Fact, Place

if TYPE_CHECKING:
    from torch import Tensor

    from kvtrace.formats.compiled.kernel import Kernel

BLOCK: Final = 16
LARGEST_SCALE: Final = 448.0
"""Of a block, in e4m3."""


@dataclass(frozen=True, slots=True)
class Nvfp4(RowCoding):
    """x̂ = code · block scale · the layer's scale."""

    tries_four: bool = False
    """Whether each block's scale is the better one of absmax / 6 and absmax / 4, by squared error."""

    loads_as: ClassVar[str | None] = "nvfp4"
    limits: ClassVar[Limits | None] = Limits(6 * LARGEST_SCALE, 7 * LARGEST_SCALE)

    def num_bytes(self, head_dim: int) -> int:
        """Return half a byte a value and one for every block."""
        return head_dim // 2 + head_dim // BLOCK

    def why_not(self, head_dim: int) -> str | None:
        """Return what is wrong with a length that is not a multiple of 16."""
        return f"head size {head_dim} is not a multiple of {BLOCK}" if head_dim % BLOCK else None

    def round_trip(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """Return the values. scale: the global scale, 1.0 where the checkpoint has none."""
        from kvtrace.formats.tensors.nvfp4 import round_trip

        return round_trip(x, scale, tries_four=self.tries_four)

    def kernel(self, head_dim: int, dtype: str) -> Kernel:  # noqa: ARG002
        """Return its compiled form."""
        from kvtrace.formats.compiled.nvfp4 import kernel

        return kernel(self.tries_four)


_FACTS: Final = (
    Fact(
        "output-rounded-to-fp8",
        "SM100 rounds the attention output to e4m3 without a scale unless the next layer takes FP8",
    ),
    Fact(
        "nvfp4-global-scale",
        "the checkpoint's k_scale is its global scale: amax / 2688 is the natural one, and an FP8 "
        "checkpoint's is 6 × that",
    ),
)
FORMATS: Final = (
    CacheFormat(
        "nvfp4",
        Nvfp4(),
        Nvfp4(),
        (
            Place("FLASHINFER", "SM100 with trtllm-gen, head size 64, 128, 256 or 512"),
            Place("FLASHINFER", "SM80, SM90 and SM120 with fa2, head size 128, 256 or 512"),
        ),
        facts=_FACTS,
    ),
    CacheFormat(
        "nvfp4_4over6",
        Nvfp4(tries_four=True),
        Nvfp4(tries_four=True),
        (Place("FLASHINFER", "SM100 alone, head size 64, 128, 256 or 512"),),
        facts=_FACTS,
    ),
)
