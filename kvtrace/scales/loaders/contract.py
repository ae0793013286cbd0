"""What every rule takes and returns, and the split of KV heads over tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InvalidCandidateError
from kvtrace.scales.names import vllm_tensor
from kvtrace.scales.resolved import EffectiveScale, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvtrace.scales.artifact import ScaleArtifact, StoredScale
    from kvtrace.scales.resolved import LoaderSetup, NoteKind

    Rule = Callable[[ScaleArtifact, int, "HeadLayout", LoaderSetup], "LayerScales"]

_TENSORS: Final = ("k", "v", "q")
NONE_LOADED: Final = "none loaded"
"""Why a scale is 1.0 where the artifact has none that the loader reads."""


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """KV heads of one layer over tensor-parallel ranks; with fewer heads than ranks each head is
    replicated.
    """

    num_heads: int
    tp: int

    def __post_init__(self) -> None:
        """Raise InvalidCandidateError where vLLM would refuse the split."""
        if self.tp < 1 or self.num_heads < 1 or max(self.num_heads, self.tp) % min(self.num_heads, self.tp):
            raise InvalidCandidateError(
                f"{self.num_heads} KV heads cannot be split over {self.tp} tensor-parallel ranks: "
                "one must be a multiple of the other",
                "unsplittable-heads",
            )

    @property
    def heads_per_rank(self) -> int:
        """Return the number of KV heads on each rank."""
        return max(1, self.num_heads // self.tp)

    def heads_of(self, rank: int) -> range:
        """Return the global ids of a rank's KV heads.

        >>> HeadLayout(4, 2).heads_of(1), HeadLayout(2, 4).heads_of(3)
        (range(2, 4), range(1, 2))
        """
        n = self.heads_per_rank
        first = rank * n if self.num_heads >= self.tp else rank // (self.tp // self.num_heads)
        return range(first, first + n)


@dataclass(slots=True)
class LayerScales:
    """One layer's scales per global KV head, and what happened. Notes of equal text are merged over
    layers.
    """

    layer: int
    scales: dict[str, list[EffectiveScale]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def fill(self, tensor: str, value: float, stored: StoredScale | None, num_heads: int) -> None:
        """Give every head the same value, made of a stored scale."""
        origin = f"unit: {NONE_LOADED}" if stored is None else stored.origin
        self.scales[tensor] = [EffectiveScale(value, origin, is_default=stored is None)] * num_heads

    def fill_default(self, tensor: str, why: str, num_heads: int) -> None:
        """Give every head 1.0, as the loader does where it has no scale."""
        self.scales[tensor] = [EffectiveScale(1.0, f"unit: {why}", is_default=True)] * num_heads

    def of_tensors(self, tensors: Iterable[str]) -> LayerScales:
        """Return the layer with the scales of the cached tensors alone, and of Q."""
        self.scales = {name: found for name, found in self.scales.items() if name in (*tensors, "q")}
        return self

    def add(self, kind: NoteKind, text: str) -> None:
        """Add a note about this layer; the text must not name the layer."""
        self.notes.append(Note(kind, text, (self.layer,)))


def unit_layer(layer: int, num_heads: int, why: str) -> LayerScales:
    """Return a layer whose scales are all 1.0."""
    found = LayerScales(layer)
    for tensor in _TENSORS:
        found.fill_default(tensor, why, num_heads)
    return found


def loaded(artifact: ScaleArtifact, layer: int, tensor: str) -> StoredScale | None:
    """Return the stored scale that vLLM's name rules load as this tensor, None where they find none.

    A merged `kv_scale` is loaded as K; where K has a scale of its own as well, that one is returned.
    """
    wanted = ("k", "kv") if tensor == "k" else (tensor,)
    method = artifact.scheme.quant_method or artifact.format.quant_method
    found = [s for s in artifact.scales if s.layer == layer and vllm_tensor(s.key, method) in wanted]
    return min(found, key=lambda s: wanted.index(vllm_tensor(s.key, method) or ""), default=None)


def unmapped(artifact: ScaleArtifact) -> tuple[StoredScale, ...]:
    """Return the stored scales that vLLM's name rules load as nothing; none in formats with one per rank."""
    if artifact.format.per_rank:
        return ()
    method = artifact.scheme.quant_method or artifact.format.quant_method
    return tuple(s for s in artifact.scales if vllm_tensor(s.key, method) is None)
