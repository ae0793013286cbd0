"""Read a scale artifact of any format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import ArtifactError
from kvtrace.scales.artifact import ProjectionScale, ScaleArtifact, UnmatchedName
from kvtrace.scales.formats import FORMATS
from kvtrace.scales.names import layer_of, projection_scale, resembles_kv_scale
from kvtrace.scales.safetensors import FLOAT_DTYPES, read_values
from kvtrace.scales.source import ArtifactSource, open_source

if TYPE_CHECKING:
    from collections.abc import Iterator


def load_artifact(path: Path | str, artifact_format: str | None = None) -> ScaleArtifact:
    """Return the scales at `path`, the format chosen from the content unless `artifact_format` names one.

    path: a checkpoint directory, a safetensors file or its index, or a JSON file of scales.
    Only headers and scale tensors are read; values are not judged (see `kvtrace.scales.resolve`).
    Raises ArtifactError: nothing there can be read as scales, a file is cut or hostile, or no such format.
    """
    path = Path(path)
    chosen = [f for f in FORMATS if artifact_format in (None, f.name)]
    if not chosen:
        names = ", ".join(f.name for f in FORMATS)
        raise ArtifactError(f"no artifact format is called {artifact_format!r}; there are {names}")
    source = open_source(path)
    form = chosen[0] if artifact_format else next(f for f in chosen if f.recognizes(source))
    reading = form.read(source)
    return ScaleArtifact(
        path=path,
        format=form,
        granularity=reading.granularity,
        scales=reading.scales,
        unmatched=(*reading.unmatched, *_outside_the_index(source)),
        other_modules=reading.other_modules,
        scheme=reading.scheme,
        model=source.model,
        num_ranks=reading.num_ranks,
        projections=tuple(_projections(source)),
        manifest=source.manifest,
    )


def _projections(source: ArtifactSource) -> Iterator[ProjectionScale]:
    """Yield the projections' scales of one number each; larger ones are weights' own business."""
    for ref in source.tensors:
        found = projection_scale(ref.name)
        layer = layer_of(ref.name)
        if found and layer is not None and set(ref.shape) <= {1} and ref.dtype in FLOAT_DTYPES:
            yield ProjectionScale(layer, *found, read_values(ref)[0])


def _outside_the_index(source: ArtifactSource) -> tuple[UnmatchedName, ...]:
    """Return the scales in files that the checkpoint's index does not name."""
    reason = "the checkpoint's index does not name its file, so the engine does not open it"
    return tuple(
        UnmatchedName(ref.name, source.relative(ref.path), reason, "outside-index")
        for ref in source.unlisted
        if resembles_kv_scale(ref.name)
    )
