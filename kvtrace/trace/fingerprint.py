"""Digests of a checkpoint folder: is this trace's model the one that those scales were made for?

Weights are not read whole: a 140 GB checkpoint must not delay an engine's start. Each digest names its
algorithm. Only the standard library is used here: this module is loaded inside the serving engine.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.files.regular import open_regular, read_regular
from kvtrace.files.strict_json import parse_strict_json

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS_ALGORITHM: Final = "tensors-4k-sha256"
TOKENIZER_ALGORITHM: Final = "files-sha256"
CHAT_TEMPLATE_ALGORITHM: Final = "sha256"

_SCALE_SUFFIXES: Final = (
    "_scale",
    "_scales",
    "_scale_inv",
    "_scale_2",
    "_zero_point",
    "_zero_points",
    ".scale_inv",
)
_TOKENIZER_FILES: Final = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
)
_EDGE_BYTES: Final = 4096
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors format itself."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Digests as `algorithm:hex`; None where there is nothing to read, or it cannot be read."""

    weights: str | None
    tokenizer: str | None
    chat_template: str | None


def fingerprint_checkpoint(folder: Path) -> Fingerprint:
    """Return the digests of a Hugging Face checkpoint folder."""
    return Fingerprint(weights_digest(folder), tokenizer_digest(folder), chat_template_digest(folder))


def weights_digest(folder: Path) -> str | None:
    """Return a digest over all safetensors tensors that are no scales, or None.

    Per tensor, by name: its name, dtype, shape, and the first and last 4 KiB of its data. How tensors are
    spread over files does not matter, and neither do scales: one model with two sets of KV scales has one
    digest. A change in the middle of a large tensor goes unseen.
    """
    digest = hashlib.sha256()
    try:
        tensors = _tensors(folder)
        if not tensors:
            return None
        for name in sorted(tensors):
            path, entry, data_start = tensors[name]
            start, end = (int(offset) for offset in entry["data_offsets"])
            if not 0 <= start <= end:
                return None
            digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
            with open_regular(path) as file:
                for at in (start, max(end - _EDGE_BYTES, start)):
                    file.seek(data_start + at)
                    digest.update(file.read(min(_EDGE_BYTES, end - at)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return f"{WEIGHTS_ALGORITHM}:{digest.hexdigest()}"


def tokenizer_digest(folder: Path) -> str | None:
    """Return a digest over the vocabulary and special-token files, or None where there are none."""
    digest, num_files = hashlib.sha256(), 0
    try:
        for name in _TOKENIZER_FILES:
            path = folder / name
            if path.is_file():
                content = read_regular(path, _MAX_HEADER_BYTES)
                digest.update(f"{name}\0{len(content)}\0".encode() + content)
                num_files += 1
    except OSError:
        return None
    return f"{TOKENIZER_ALGORITHM}:{digest.hexdigest()}" if num_files else None


def chat_template_digest(folder: Path) -> str | None:
    """Return the SHA-256 of the chat template's text, wherever the checkpoint keeps it, or None."""
    try:
        file = folder / "chat_template.jinja"
        if file.is_file():
            template: Any = read_regular(file).decode()
        else:
            template = parse_strict_json(read_regular(folder / "tokenizer_config.json"), constants=True)[
                "chat_template"
            ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return f"{CHAT_TEMPLATE_ALGORITHM}:{hashlib.sha256(text.encode()).hexdigest()}"


def is_scale(tensor_name: str) -> bool:
    """Return whether a checkpoint tensor holds quantization scales or zero points rather than weights.

    >>> is_scale("model.layers.0.self_attn.k_scale"), is_scale("model.layers.0.self_attn.k_proj.weight")
    (True, False)
    """
    return tensor_name.endswith(_SCALE_SUFFIXES)


def _tensors(folder: Path) -> dict[str, tuple[Path, dict[str, Any], int]]:
    """Return (file, header entry, where the file's data starts) of every tensor that is no scale."""
    found: dict[str, tuple[Path, dict[str, Any], int]] = {}
    for path in _weight_files(folder):
        header, data_start = _header(path)
        for name, entry in header.items():
            if name != "__metadata__" and not is_scale(name):
                found[name] = (path, entry, data_start)
    return found


def _weight_files(folder: Path) -> list[Path]:
    """Return the files that the index lists, or all: a folder may hold a second copy beside them."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = parse_strict_json(read_regular(index))["weight_map"].values()
        return [folder / name for name in sorted(set(listed))]
    single = folder / "model.safetensors"
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with open_regular(path) as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{path}: a header of {length:,} bytes")
        if 8 + length > os.fstat(file.fileno()).st_size:
            raise ValueError(f"{path}: is cut")
        header = parse_strict_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{path}: the header is not a JSON object")
    return header, 8 + length
