"""Phrases of findings: heads, shares and commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtrace.findings.finding import Head
    from kvtrace.findings.run.case import Case, Subject

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


def calibrate_command(case: Case, *options: str) -> str:
    """Return the command that makes new scales of the run's traces."""
    return " ".join(["kvtrace calibrate", *_traces(case), *options, "-o NEW"])


def recalibrate_command(case: Case, subject: Subject) -> str:
    """Return the same with room to spare, and per tensor where the scales are: not all engines take more."""
    wants_tensor = subject.granularity == "tensor" or subject.reason_id == "per-head-refused"
    per_tensor = ["--granularity tensor"] if wants_tensor else []
    return calibrate_command(case, "--headroom 2", *per_tensor)


def scales_command(case: Case, artifact: str | None, *options: str) -> str | None:
    """Return the command that shows an artifact layer by layer; None: the scales were given as numbers."""
    if artifact is None:
        return None
    return " ".join(["kvtrace scales", _quoted(artifact), "--trace", _traces(case)[0], *options])


def _traces(case: Case) -> list[str]:
    return [_quoted(source.path) for source in case.run.record.sources]


def _quoted(path: str) -> str:
    """Return a path for a shell. One with control characters is shown escaped, which is no path to copy."""
    return shlex.quote(plain(path, 1000))
