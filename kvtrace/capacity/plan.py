"""Blocks, tokens and requests that a budget of bytes holds: what an engine prints when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.capacity.groups import Pool, grouped
from kvtrace.capacity.pages import Pages, layer_pages
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from kvtrace.capacity.model import ModelLayers
    from kvtrace.capacity.serving import Serving


@dataclass(frozen=True, slots=True)
class CachePlan:
    """A model's cache under one dtype on one rank."""

    serving: Serving
    pages: Pages
    pool: Pool

    @property
    def bytes_per_token(self) -> int:
        """Return the bytes of one token over all layers that grow with it, without padding and states."""
        return sum(page.token_bytes for _, page in self.pages.layers)

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of one block over all layers, padding included."""
        return self.pool.bytes_per_block

    @property
    def state_bytes(self) -> int:
        """Return the bytes of one state of every layer that keeps one, without padding."""
        return sum(page.state_bytes for _, page in self.pages.layers)

    @property
    def blocks_per_request(self) -> int:
        """Return the blocks of a request of full length."""
        return self.pool.blocks_of(self.serving.max_model_len, self.serving)

    def num_blocks(self, budget: int) -> int:
        """Return the blocks that so many bytes hold; one of them never holds tokens."""
        return budget // self.bytes_per_block if self.serving.num_blocks is None else self.serving.num_blocks

    def concurrency(self, num_blocks: int) -> float:
        """Return the requests of full length that fit, as the engine prints it.

        It counts the block that never holds tokens. Source: `get_max_concurrency_for_kv_cache_config`.
        """
        return num_blocks / self.blocks_per_request

    def num_tokens(self, num_blocks: int) -> int:
        """Return the engine's "KV cache size": requests of full length × their length."""
        return int(self.concurrency(num_blocks) * self.serving.max_model_len)

    def holds_one_request(self, num_blocks: int) -> bool:
        """Return whether one request of full length fits beside the block that never holds tokens."""
        return num_blocks - 1 >= self.blocks_per_request


def plan_cache(model: ModelLayers, serving: Serving) -> CachePlan:
    """Return how vLLM would lay out a model's cache.

    Raises InputError: it would not start so, or the layout is one that kvtrace does not know.
    """
    if serving.max_model_len < 1:
        raise InputError(f"--max-model-len is {serving.max_model_len}, expected 1 or more")
    pages = layer_pages(model, serving)
    return CachePlan(serving, pages, grouped([page for _, page in pages.layers], serving))
