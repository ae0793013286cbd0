"""The words of the answer: headlines by finding, heads and places, the three questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.figures import count, positions
from kvtrace.findings.rules import DIAGNOSED
from kvtrace.findings.wording import tensors_of
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.findings.finding import Finding, Head, Where

RULES: Final = {rule.id: rule for rule in DIAGNOSED}
_MOST_HEADS: Final = 3


def headline_of(finding: Finding, *, num_heads: int, is_what_if: bool) -> str:
    """Return what a finding says in at most 14 words.

    num_heads: of the tensors concerned. is_what_if: its scales did not run.
    """
    rule = RULES[finding.id]
    headline = rule.headline if isinstance(rule.headline, str) else rule.headline(finding)
    text = (is_what_if and rule.what_if) or headline or f"Found: {finding.id}"
    some = f"{len(finding.heads):,} of {count(num_heads, 'head')}"
    return text.format(
        tensors=tensors_of(finding.heads) or "K and V",
        heads=some if finding.heads else "some heads",
        layers=layers_in_words(finding.layers),
    )


def layers_in_words(layers: Sequence[int]) -> str:
    """Return layers as a headline names them.

    >>> layers_in_words(()), layers_in_words((3,)), layers_in_words((3, 4))
    ('all layers', 'layer 3', '2 layers')
    """
    if not layers:
        return "all layers"
    return f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers"


def where_in_words(where: Where) -> str:
    """Return a part of the traffic.

    >>> from kvtrace.findings.finding import Where
    >>> where_in_words(Where("workload", ("code", "math"))), where_in_words(Where("position", first=8192))
    ('in the workloads code, math', 'from position 8,192 on')
    >>> where_in_words(Where("position", first=16, end=64)), where_in_words(Where("output-length", first=0))
    ('at positions 16–63', 'from the first generated token on')
    """
    if where.kind == "phase":
        return f"in {where.names[0]}"
    if where.kind == "workload":
        named = ", ".join(plain(name, 40) for name in where.names)
        return f"in workload {named}" if len(where.names) == 1 else f"in the workloads {named}"
    if where.kind == "position":
        return (
            f"from position {where.first:,} on"
            if where.end is None
            else f"at positions {positions(where.first, where.end - 1)}"
        )
    return f"from generated token {where.first:,} on" if where.first else "from the first generated token on"


def head_name(head: Head) -> str:
    """Return a head in full.

    >>> head_name((14, 1, "k"))
    'layer 14 head 1 K'
    """
    layer, kv_head, tensor = head
    return f"layer {layer} head {kv_head} {tensor.upper()}"


def heads_in_words(heads: Sequence[Head]) -> str:
    """Return at most three heads, the first in full.

    >>> heads_in_words([(14, 1, "k"), (15, 3, "k"), (22, 0, "v"), (1, 1, "k")])
    'layer 14 head 1 K, then 15/3 K and 22/0 V'
    """
    first, *others = heads[:_MOST_HEADS]
    short = [f"{layer}/{kv_head} {tensor.upper()}" for layer, kv_head, tensor in others]
    return head_name(first) + (f", then {' and '.join(short)}" if short else "")
