"""A checkpoint without KV-cache scales: every loader uses 1.0."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.scales.formats.compressed_tensors import METHOD, declared_scheme
from kvtrace.scales.formats.contract import Format, Reading, read_tensors
from kvtrace.scales.names import is_per_channel

if TYPE_CHECKING:
    from kvtrace.scales.source import ArtifactSource


def recognizes(source: ArtifactSource) -> bool:
    """Always: this is the last format tried."""
    del source
    return True


def read(source: ArtifactSource) -> Reading:
    """Return no scales, and the names that look like some."""
    reading = read_tensors(source, lambda _name: None)
    scheme = declared_scheme(source)
    if any(is_per_channel(name.name) for name in reading.unmatched):
        scheme = replace(scheme, number_format="int8-per-channel")
    return replace(reading, scheme=scheme)


# Files without a configuration are judged as what kvtrace itself writes would be.
FORMAT = Format("none", recognizes, read, quant_method=METHOD)
