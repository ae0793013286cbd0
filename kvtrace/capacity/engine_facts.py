"""What an engine said of its memory and its cache: from its log, or from /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.capacity.budget import Budget


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Of one engine. None: it did not say."""

    source: str
    """The file."""
    model: str | None = None
    cache_dtype: str | None = None
    skip_layers: tuple[str, ...] = ()
    max_model_len: int | None = None
    tp: int | None = None
    pp: int | None = None
    dcp: int | None = None
    is_cpu: bool | None = None
    prefix_caching: bool | None = None
    layout: str | None = None
    """Order of a cache's axes, such as LBNHC: L layers, B blocks, N tokens, H heads, C content."""
    block_size: int | None = None
    num_blocks: int | None = None
    num_tokens: int | None = None
    """"KV cache size": requests of full length × their length."""
    concurrency: float | None = None
    pool: Budget | None = None
    """Bytes for the cache, of one rank."""
    weights: Budget | None = None
    """As loaded, of one rank."""
    requested: Budget | None = None
    """All that the engine was allowed on its device."""
    consumed: Budget | None = None
    """Weights and what is outside PyTorch."""
    activations: Budget | None = None
    graphs: Budget | None = None

    @property
    def rest_bytes(self) -> int | None:
        """Return what neither weights nor the pool took of what was requested; None where one is not told."""
        if self.requested is None or self.weights is None or self.pool is None:
            return None
        return max(0, self.requested.num_bytes - self.weights.num_bytes - self.pool.num_bytes)
