"""What a loader makes of an artifact: one scale per layer, global KV head and tensor, and what happened on
the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvtrace.errors import InvalidCandidateError
from kvtrace.plain_text import plain
from kvtrace.scales.loaders.loader import VLLM

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvtrace.errors import InvalidReason
    from kvtrace.scales.artifact import Granularity
    from kvtrace.scales.loaders.loader import Loader

NoteKind = Literal[
    "crash",  # the loader would not start, or would die
    "silent-default",  # the loader uses 1.0 and does not say in which layer
    "collapsed",  # per-head values become their maximum
    "duplicated",  # K's scale is used for V
    "dropped-name",  # the loader does not know the tensor's name
    "other-format",  # the scales are of another number format than FP8
    "mixed-format",  # layers differ in their number format
    "not-fp8",  # the cache is not FP8, or has scales of its own
    "other-model",  # layers or heads differ from the model's
    "information",
]

_BLOCKING: Final[dict[NoteKind, InvalidReason]] = {
    "other-model": "wrong-model",
    "crash": "engine-crash",
    "other-format": "other-format",
}


@dataclass(frozen=True, slots=True)
class LoaderSetup:
    """What loads the artifact, as far as it shapes the scales."""

    loader: Loader = VLLM
    backend: str | None = None
    """Attention backend by the product's own name; None: one that honours scales per head."""
    tp: int = 1
    kv_cache_dtype: str = "fp8"
    fnuz: bool = False
    """Hardware with e4m3fnuz (gfx94): vLLM doubles loaded scales."""


@dataclass(frozen=True, slots=True)
class EffectiveScale:
    """The multiplier in effect for one layer, KV head and tensor, and where it came from."""

    value: float
    origin: str
    """`file:key`, or `unit` with the reason."""
    is_default: bool = False
    """The loader falls back to 1.0 here."""

    @property
    def problem(self) -> str | None:
        """Return why no cache can be written with this value, None where it can."""
        if math.isnan(self.value) or math.isinf(self.value):
            return f"is {self.value}"
        return None if self.value > 0 else f"is {self.value:g}, expected > 0"


@dataclass(frozen=True, slots=True)
class Note:
    """Something the loader does with the artifact that its author may not expect."""

    kind: NoteKind
    text: str
    layers: tuple[int, ...] = ()
    fact: str = ""
    """Of `other-model`: what differs, without the file and the question that the text has around it."""


@dataclass(frozen=True, slots=True)
class ResolvedScales:
    """Scales in effect under one setup of the loader."""

    path: Path
    setup: LoaderSetup
    granularity: Granularity
    """As applied: `attn_head` only where heads really get values of their own."""
    scales: Mapping[tuple[int, int, str], EffectiveScale]
    """(layer, global kv_head, `k` | `v` | `q`) → scale; q's is per KV head, the largest of its group."""
    notes: tuple[Note, ...] = ()

    def scale(self, layer: int, kv_head: int, tensor: str) -> EffectiveScale:
        """Return the scale of one layer, global KV head and tensor (`k`, `v` or `q`)."""
        return self.scales[layer, kv_head, tensor]

    def notes_of(self, *kinds: NoteKind) -> tuple[Note, ...]:
        """Return the notes of these kinds."""
        return tuple(note for note in self.notes if note.kind in kinds)

    @property
    def note(self) -> str | None:
        """Return every note that does not invalidate, as one text; None where there is none."""
        texts = [n.text for n in self.notes if n.kind not in _BLOCKING]
        return "; ".join(texts) or None

    @property
    def invalid_reason(self) -> str | None:
        """Return why this candidate cannot be replayed, None where it can."""
        blocking = self.notes_of(*_BLOCKING)
        if blocking:
            return "; ".join(note.text for note in blocking)
        bad = [
            (layer, head, tensor, scale)
            for (layer, head, tensor), scale in self.scales.items()
            if tensor in ("k", "v") and scale.problem
        ]
        if not bad:
            return None
        layer, head, tensor, scale = bad[0]
        more = f" and {len(bad) - 1} more like it" if len(bad) > 1 else ""
        return (
            f"{self.path}: the {tensor} scale of layer {layer}, KV head {head} ({plain(scale.origin, 160)}) "
            f"{scale.problem}{more}; "
            "a scale is a finite number > 0"
        )

    def require_valid(self) -> None:
        """Raise InvalidCandidateError where the loader would crash or the artifact belongs to another
        model.
        """
        if self.invalid_reason:
            blocking = self.notes_of(*_BLOCKING)
            raise InvalidCandidateError(
                self.invalid_reason, _BLOCKING[blocking[0].kind] if blocking else "unusable-value"
            )
