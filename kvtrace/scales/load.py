"""Read a scale artifact of any format."""

from __future__ import annotations

from pathlib import Path

from kvtrace.errors import ArtifactError
from kvtrace.scales.artifact import ScaleArtifact, UnmatchedName
from kvtrace.scales.formats import FORMATS
from kvtrace.scales.names import resembles_kv_scale
from kvtrace.scales.source import ArtifactSource, open_source


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
        manifest=source.manifest,
    )


def _outside_the_index(source: ArtifactSource) -> tuple[UnmatchedName, ...]:
    """Return the scales in files that the checkpoint's index does not name."""
    reason = "the checkpoint's index does not name its file, so the engine does not open it"
    return tuple(
        UnmatchedName(ref.name, source.relative(ref.path), reason, "outside-index")
        for ref in source.unlisted
        if resembles_kv_scale(ref.name)
    )
