"""Layers put into the groups that share one table of blocks, and the bytes that one block takes over them.

Source: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_kv_cache_groups`, `unify_kv_cache_spec_page_size`,
`_get_kv_cache_groups_uniform_page_size`, `_promote_local_kv_cache_specs`), for layouts that keep each layer's
blocks together (LBNHC, LBHNC), which is what vLLM prefers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.capacity.pages import Page
    from kvtrace.capacity.serving import Serving

_WORTH_PADDING: Final = 1.5
"""Groups take the size of the largest bucket of layers where it is less than this times the smallest."""
_ALL_TOKENS: Final = ("full", "latent")


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that one table of blocks serves: a block of the pool holds so many tokens of all of them."""

    pages: tuple[Page, ...]

    @property
    def block(self) -> int:
        """Return the tokens of one block."""
        return self.pages[0].block

    @property
    def size(self) -> int:
        """Return the bytes that its layers take of one block of the pool."""
        return sum(page.size for page in self.pages)

    @property
    def content(self) -> int:
        """Return the bytes of them that are in use."""
        return sum(page.content for page in self.pages)

    def blocks_of(self, num_tokens: int, serving: Serving) -> int:
        """Return the most blocks that a request of so many tokens holds at a time.

        A window keeps the tokens in flight as well, and may begin within a block.
        """
        first = self.pages[0]
        if first.kind == "state":
            return (2 if serving.prefix_caching else 1) + serving.speculative_tokens
        if first.kind == "sliding":
            assert first.span is not None
            kept = min(first.span - 1 + serving.in_flight_tokens, num_tokens)
            return -(-kept // first.block) + 1
        if first.kind == "chunked":
            assert first.span is not None
            return -(-min(first.span + serving.in_flight_tokens, num_tokens) // first.block)
        return -(-num_tokens // first.block)


@dataclass(frozen=True, slots=True)
class Pool:
    """The groups of a model and the block that all of them share."""

    groups: tuple[Group, ...]

    @property
    def bytes_per_block(self) -> int:
        """Return the bytes of one block on one rank: what the largest group needs."""
        return max(group.size for group in self.groups)

    @property
    def padding_frac(self) -> float:
        """Return the share of the blocks' bytes that no layer uses: padded pages, and missing layers."""
        return 1 - sum(group.content for group in self.groups) / (self.bytes_per_block * len(self.groups))

    def blocks_of(self, num_tokens: int, serving: Serving) -> int:
        """Return the most blocks that a request of so many tokens holds at a time, over all groups."""
        return sum(group.blocks_of(num_tokens, serving) for group in self.groups)


def grouped(pages: Sequence[Page], serving: Serving) -> Pool:
    """Return the groups of some layers. Raises InputError: vLLM cannot put them together."""
    if not pages:
        raise InputError("no layer keeps a cache of its own: there is nothing to plan")
    if not serving.hybrid_manager:
        pages = _promoted(pages)
    if _is_one_type(pages):
        return Pool((Group(tuple(pages)),))
    if not serving.hybrid_manager:
        raise InputError(
            "layers of several kinds need the hybrid cache manager; leave --no-hybrid-manager out"
        )
    unified = _unified(pages)
    if unified is None:
        return Pool((Group(tuple(_promoted(pages))),))
    return Pool(tuple(_in_groups(unified)))


def _is_one_type(pages: Sequence[Page]) -> bool:
    first = pages[0]
    if any(page.block != first.block for page in pages):
        return False
    if first.kind in _ALL_TOKENS:
        return all(page.kind in _ALL_TOKENS for page in pages)
    alike = ("state_bytes", "padded") if first.kind == "state" else ("span",)
    return all(
        page.kind == first.kind and all(getattr(page, name) == getattr(first, name) for name in alike)
        for page in pages
    )


def _promoted(pages: Sequence[Page]) -> list[Page]:
    """Return layers with a window as if they kept all tokens, in the full layers' blocks."""
    blocks = {page.block for page in pages if page.kind in _ALL_TOKENS}
    if not blocks:
        return list(pages)
    block = next(iter(blocks)) if len(blocks) == 1 else None
    return [
        page
        if page.kind not in ("sliding", "chunked")
        else replace(
            page,
            kind="full",
            span=None,
            block=block or page.block,
            padded=page.padded and max(page.padded, page.token_bytes * (block or page.block)),
        )
        for page in pages
    ]


def _unified(pages: Sequence[Page]) -> list[Page] | None:
    """Return the layers with pages of one size, None where latents stand in the way and windows can give in.

    A smaller page takes more tokens where that fits, else it is padded.
    """
    largest = max(page.size for page in pages)
    unified = []
    for page in pages:
        if page.size == largest:
            unified.append(page)
        elif page.kind != "state" and largest % page.size == 0:
            if page.padded is not None:
                raise InputError(
                    f"pages padded to {page.size:,} bytes beside pages of {largest:,}: vLLM does not start "
                    "so; leave the windows native as well, or the full layers quantized"
                )
            unified.append(replace(page, block=page.block * (largest // page.size)))
        elif page.kind != "latent":
            unified.append(replace(page, padded=largest))
        elif any(other.kind == "sliding" for other in pages):
            return None
        else:
            raise InputError(
                f"a latent's page of {page.size:,} bytes does not divide the largest page of {largest:,}; "
                "vLLM does not start so: give another --block-size"
            )
    return unified


def _in_groups(pages: Sequence[Page]) -> list[Group]:
    """Return groups of equally many layers; those that a group lacks are paid for as well."""
    buckets: dict[Page, list[Page]] = {}
    for page in pages:
        buckets.setdefault(page, []).append(page)
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < min(counts) * _WORTH_PADDING else min(counts)
    groups: list[Group] = []
    for bucket in buckets.values():
        num_groups = -(-len(bucket) // size)
        groups.extend(Group(tuple(bucket[n::num_groups])) for n in range(num_groups))
    return groups
