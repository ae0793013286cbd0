"""Copy a safetensors file without some of its tensors."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import ArtifactError
from kvtrace.files.regular import open_regular
from kvtrace.scales.safetensors import read_header

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_BLOCK_BYTES: Final = 16 << 20


def copy_without(source: Path, target: Path, names: Collection[str]) -> None:
    """Write `source` to `target` without the tensors of these names; the others keep their bytes and order.

    Raises ArtifactError: the source is no safetensors file, or ends inside a tensor.
    """
    kept = sorted(
        (ref for ref in read_header(source).values() if ref.name not in names), key=lambda ref: ref.start
    )
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for ref in kept:
        start, end = end, end + ref.end - ref.start
        header[ref.name] = {"dtype": ref.dtype, "shape": list(ref.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open_regular(source) as old, target.open("xb") as new:
        new.write(struct.pack("<Q", len(text)) + text)
        for ref in kept:
            old.seek(ref.start)
            left = ref.end - ref.start
            while left:
                block = old.read(min(left, _BLOCK_BYTES))
                if not block:
                    raise ArtifactError(f"{source}: ends inside {ref.name[:80]!r}")
                new.write(block)
                left -= len(block)
