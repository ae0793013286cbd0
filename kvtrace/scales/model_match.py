"""Does the artifact belong to the model it is used with? Layers and heads are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.plain_text import plain
from kvtrace.scales.resolved import Note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvtrace.scales.artifact import ScaleArtifact

MEANT = "was the artifact calibrated on another model?"


def model_notes(
    artifact: ScaleArtifact, num_layers: int, kv_heads_per_layer: int | Mapping[int, int]
) -> Iterator[Note]:
    """Yield one `other-model` note for each way in which the artifact's layers or heads differ from the
    model's.
    """
    path = artifact.path
    declared = artifact.model.num_layers
    if declared is not None and declared != num_layers:
        yield Note(
            "other-model",
            f"{path}: its config.json has {declared} layers, the model has {num_layers}; {MEANT}",
        )
    beyond = [layer for layer in artifact.layers if layer >= num_layers]
    if beyond:
        yield Note(
            "other-model",
            f"{path}: holds scales for layer {beyond[-1]}, the model's last layer is {num_layers - 1}; "
            f"{MEANT}",
            tuple(beyond),
        )
    elif declared is None and artifact.layers and len(artifact.layers) < num_layers:
        # Without a config.json nothing says that the missing layers were left out on purpose.
        yield Note(
            "other-model",
            f"{path}: holds scales for {len(artifact.layers)} layers, the model has {num_layers}; {MEANT}",
        )
    yield from _head_notes(artifact, kv_heads_per_layer)


def _head_notes(artifact: ScaleArtifact, kv_heads_per_layer: int | Mapping[int, int]) -> Iterator[Note]:
    heads_of = kv_heads_per_layer if not isinstance(kv_heads_per_layer, int) else None
    every = (
        kv_heads_per_layer
        if isinstance(kv_heads_per_layer, int)
        else max(kv_heads_per_layer.values(), default=0)
    )
    declared = artifact.model.num_kv_heads
    if declared is not None and declared != every:
        text = f"{artifact.path}: its config.json has {declared} KV heads, the model has {every}; {MEANT}"
        yield Note("other-model", text)
        return
    for scale in artifact.scales:
        heads = every if heads_of is None else heads_of.get(scale.layer, every)
        if scale.tensor in ("k", "v") and len(scale.values) not in (1, heads):
            yield Note(
                "other-model",
                f"{artifact.path}: {plain(scale.key, 120)} has {len(scale.values)} heads, the model has "
                f"{heads}; "
                f"{MEANT}",
                (scale.layer,),
            )
            return
