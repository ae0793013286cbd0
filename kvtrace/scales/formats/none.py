"""A checkpoint without KV-cache scales: every loader uses 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.scales.formats.compressed_tensors import METHOD, declared_scheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors

if TYPE_CHECKING:
    from kvtrace.scales.source import ArtifactSource


def recognizes(source: ArtifactSource) -> bool:
    """Always: this is the last format tried."""
    del source
    return True


def read(source: ArtifactSource) -> Reading:
    """Return no scales, and the names that look like some."""
    _, unmatched = read_tensors(source, lambda _name: None)
    return Reading((), unmatched, declared_scheme(source))


# Files without a configuration are judged as what kvtrace itself writes would be.
FORMAT = Format("none", recognizes, read, quant_method=METHOD)
