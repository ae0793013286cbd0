"""Does the artifact belong to the model it is used with? Layers and heads are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.plain_text import plain
from kvtrace.scales.resolved import Note

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvtrace.scales.artifact import ScaleArtifact
    from kvtrace.trace.cache_layers import CacheLayers

MEANT = "was the artifact calibrated on another model?"


def model_notes(
    artifact: ScaleArtifact,
    num_layers: int,
    kv_heads_per_layer: int | Mapping[int, int],
    cache: CacheLayers,
) -> Iterator[Note]:
    """Yield one `other-model` note for each way in which the artifact's layers or heads differ from the
    model's.
    """
    declared = artifact.model.num_layers
    if declared is not None and declared != num_layers:
        yield _note(artifact, f"its config.json has {declared} layers, the model has {num_layers}")
    beyond = [layer for layer in artifact.layers if layer >= num_layers + cache.num_draft_layers]
    own = [n for n in cache.own_cache(range(num_layers)) if n not in cache.unquantized]
    if beyond:
        fact = f"holds scales for layer {beyond[-1]}, the model's last layer is {num_layers - 1}"
        yield _note(artifact, fact, beyond)
    elif declared is None and artifact.layers and len(artifact.layers) < len(own):
        # Without a config.json nothing says that the missing layers were left out on purpose.
        yield _note(artifact, f"holds scales for {len(artifact.layers)} layers, the model has {len(own)}")
    if cache.is_latent:
        return  # its configuration counts heads that the latent does not have
    yield from _head_notes(artifact, kv_heads_per_layer)


def _note(artifact: ScaleArtifact, fact: str, layers: Iterable[int] = ()) -> Note:
    return Note("other-model", f"{artifact.path}: {fact}; {MEANT}", tuple(layers), fact)


def _head_notes(artifact: ScaleArtifact, kv_heads_per_layer: int | Mapping[int, int]) -> Iterator[Note]:
    heads_of = kv_heads_per_layer if not isinstance(kv_heads_per_layer, int) else None
    every = (
        kv_heads_per_layer
        if isinstance(kv_heads_per_layer, int)
        else max(kv_heads_per_layer.values(), default=0)
    )
    declared = artifact.model.num_kv_heads
    if declared is not None and declared != every:
        yield _note(artifact, f"its config.json has {declared} KV heads, the model has {every}")
        return
    for scale in artifact.scales:
        heads = every if heads_of is None else heads_of.get(scale.layer, every)
        if scale.tensor in ("k", "v") and len(scale.values) not in (1, heads):
            fact = f"{plain(scale.key, 120)} has {len(scale.values)} heads, the model has {heads}"
            yield _note(artifact, fact, (scale.layer,))
            return
