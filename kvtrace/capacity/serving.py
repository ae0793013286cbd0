"""How a model is served, as far as it changes what the cache holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Platform = Literal["gpu", "cpu"]

GPU_BATCHED_TOKENS: Final = 8192
"""`max_num_batched_tokens` of vLLM 0.32's server on an H100 or H200; 16,384 from 160 GiB on, 2,048 on an A100
and below 70 GiB."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The server's settings, under vLLM's names where it has one."""

    max_model_len: int
    cache_dtype: str = "auto"
    skip_layers: tuple[str, ...] = ()
    """Layer numbers and `sliding_window`, as `--kv-cache-dtype-skip-layers` takes them."""
    tp: int = 1
    block_size: int | None = None
    """None: what the backend prefers."""
    max_num_batched_tokens: int = GPU_BATCHED_TOKENS
    platform: Platform = "gpu"
    backend: str | None = None
    """None: the first that runs the cache dtype."""
    prefix_caching: bool = True
    hybrid_manager: bool = True
    speculative_tokens: int = 0
    num_blocks: int | None = None
    """`num_gpu_blocks_override`: replaces what the budget gives."""

    @property
    def in_flight_tokens(self) -> int:
        """Return the tokens that are scheduled and not settled: windows keep their blocks for so many more.

        Source: vLLM 0.32, `VllmConfig.max_in_flight_tokens`: two batches where scheduling is asynchronous.
        """
        return self.max_num_batched_tokens * (1 if self.platform == "cpu" else 2)
