"""Read a scale artifact of any format."""

from __future__ import annotations

from pathlib import Path

from kvtrace.errors import ArtifactError
from kvtrace.scales.artifact import ScaleArtifact
from kvtrace.scales.formats import FORMATS
from kvtrace.scales.source import open_source


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
        format=form.name,
        granularity=reading.granularity,
        scales=reading.scales,
        unmatched=reading.unmatched,
        scheme=reading.scheme,
        model=source.model,
        num_ranks=reading.num_ranks,
        manifest=source.manifest,
    )
