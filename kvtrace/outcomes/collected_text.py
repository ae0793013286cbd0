"""What `kvtrace outcomes` says of the table that it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.figures import count
from kvtrace.outcomes.outcome import KINDS
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.outcomes.collect import Collected


def collected_text(collected: Collected) -> str:
    """Return a line for each variant: its answers, by outcome."""
    return "".join(f"{line}\n" for line in _lines(collected))


def _lines(collected: Collected) -> Iterator[str]:
    for variant, kinds in collected.by_variant.items():
        named = ", ".join(f"{kinds[kind]:,} {kind.replace('_', ' ')}" for kind in KINDS if kinds[kind])
        yield f"{plain(variant)}: {count(kinds.total(), 'answer')}: {named}"
    if any(kinds["unjudged"] for kinds in collected.by_variant.values()):
        yield "unjudged answers block every verdict: judge them, or leave out their prompts in all variants"
