"""Did more than the scales change? Compares two checkpoints: weights, tokenizer, chat template."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import ArtifactError, InputError
from kvtrace.files.regular import open_regular
from kvtrace.scales.source import open_source
from kvtrace.trace.fingerprint import chat_template_digest, is_scale, tokenizer_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.scales.safetensors import TensorRef

_READ_BYTES: Final = 1 << 24


def require_existing(against: Path | None) -> None:
    """Raise InputError: a checkpoint to compare with was given, and nothing is there."""
    if against is not None and not against.exists():
        raise InputError(
            f"{against}: no such file or directory; expected the checkpoint that --against compares with"
        )


@dataclass(frozen=True, slots=True)
class WeightsComparison:
    """What is no scale, this checkpoint against another."""

    against: str
    num_tensors: int
    """Of this checkpoint."""
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    changed: tuple[str, ...]
    """In both, with another dtype, shape or content."""
    other_text: tuple[str, ...] = ()
    """`tokenizer`, `chat template`: where both checkpoints have one and they differ."""

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same weights."""
        return not (self.only_here or self.only_there or self.changed)


def compare_weights(artifact: Path, against: Path) -> WeightsComparison:
    """Compare every tensor that is no scale by SHA-256 (one and the same file is not read), and the texts.

    Raises ArtifactError: a checkpoint cannot be read, or holds no weights.
    """
    here, there = _weights(artifact), _weights(against)
    both = sorted(here.keys() & there.keys())
    return WeightsComparison(
        against=str(against),
        num_tensors=len(here),
        only_here=tuple(sorted(here.keys() - there.keys())),
        only_there=tuple(sorted(there.keys() - here.keys())),
        changed=tuple(name for name in both if not _is_equal(here[name], there[name])),
        other_text=tuple(_other_text(artifact, against)),
    )


def _weights(path: Path) -> dict[str, TensorRef]:
    found = {ref.name: ref for ref in open_source(path).tensors if not is_scale(ref.name)}
    if not found:
        raise ArtifactError(f"{path}: holds no weights to compare, only scales; give whole checkpoints")
    return found


def _is_equal(one: TensorRef, other: TensorRef) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.start == other.start and one.path.samefile(other.path):
        return True
    return _digest(one) == _digest(other)


def _other_text(here: Path, there: Path) -> Iterator[str]:
    for what, digest_of in (("tokenizer", tokenizer_digest), ("chat template", chat_template_digest)):
        one, other = digest_of(here), digest_of(there)
        if one and other and one != other:
            yield what


def _digest(ref: TensorRef) -> str:
    digest = hashlib.sha256()
    try:
        with open_regular(ref.path) as file:
            file.seek(ref.start)
            left = ref.end - ref.start
            while left and (part := file.read(min(left, _READ_BYTES))):
                digest.update(part)
                left -= len(part)
    except OSError as error:
        raise ArtifactError(f"{ref.path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()
