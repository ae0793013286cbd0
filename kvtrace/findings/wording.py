"""Phrases of findings: heads, tensors and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtrace.findings.finding import Head

_MOST_NAMED = 3


def some_heads(heads: Sequence[Head]) -> str:
    """Return the first heads by name.

    >>> some_heads([(3, 1, "k")]), some_heads([(0, h, "v") for h in range(5)])
    ('layer 3 head 1', 'layer 0 head 0, layer 0 head 1, layer 0 head 2 and 2 more')
    """
    named = ", ".join(f"layer {layer} head {head}" for layer, head, _ in heads[:_MOST_NAMED])
    more = len(heads) - _MOST_NAMED
    return named + (f" and {more} more" if more > 0 else "")


def tensors_of(heads: Iterable[Head]) -> str:
    """Return K, V or K and V.

    >>> tensors_of([(0, 0, "v"), (0, 0, "k")])
    'K and V'
    """
    return " and ".join(sorted({tensor.upper() for _, _, tensor in heads}))


def skip_layers_flag(layers: Iterable[int]) -> str:
    """Return vLLM's flag that leaves layers unquantized.

    >>> skip_layers_flag([7, 3, 7])
    '--kv-cache-dtype-skip-layers 3 7'
    """
    return "--kv-cache-dtype-skip-layers " + " ".join(str(layer) for layer in sorted(set(layers)))
