"""What runs must have in common before their candidates are compared: one thing is changed at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvtrace.errors import ComparisonError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kvtrace.runs.open import Run
    from kvtrace.runs.record import SourceRecord

FACTS: Final[dict[str, Callable[[SourceRecord], str | None]]] = {
    "weights_digest": lambda source: source.model.weights_digest,
    "model_revision": lambda source: source.model.revision,
    "tokenizer_revision": lambda source: source.model.tokenizer_revision or source.model.tokenizer_digest,
    "tokenizer_digest": lambda source: source.model.tokenizer_digest,
    "chat_template_digest": lambda source: source.model.chat_template_digest,
    "attention_backend": lambda source: ", ".join(source.attention_backends) or None,
    "engine_version": lambda source: f"{source.engine.name} {source.engine.version}",
    "kv_cache_dtype": lambda source: source.engine.kv_cache_dtype,
    "trace_sha256": lambda source: source.trace_sha256,
}
"""What a trace says of the model and the engine, by the names of `--allow-different` and of a policy."""
_OF_SOURCE: Final = tuple(field for field in FACTS if field not in ("tokenizer_digest", "kv_cache_dtype"))
_OF_MANIFEST: Final = ("image_digest", "kernel_revision", "gpu_inventory", "kv_dtype", "effective_args")
"""Compared between the manifests that have them. What belongs to a candidate, such as `skipped_layers`, is
what a comparison is about; `trace_sha256` stands for the evaluation corpus."""
FIELDS: Final = (*_OF_SOURCE, "evaluator_revision", *_OF_MANIFEST)


def constants(run: Run) -> dict[str, str | None]:
    """Return each field of the run that a comparison holds constant; None where nobody recorded it.

    A run of several traces has all their values, sorted. What no trace holds is taken from the manifest.
    """
    manifest = run.record.manifest.given()
    found: dict[str, str | None] = {}
    for field in _OF_SOURCE:
        values = {FACTS[field](source) for source in run.record.sources}
        known = sorted(value for value in values if value is not None)
        found[field] = ", ".join(known) if known else _as_text(manifest.get(field))
    found["evaluator_revision"] = run.record.kvtrace_version
    for field in _OF_MANIFEST:
        found[field] = _as_text(manifest.get(field))
    return found


def held_constant(
    runs: Sequence[Run], allow_different: Collection[str]
) -> tuple[dict[str, str | None], dict[str, list[str | None]]]:
    """Return what all runs share, and what they are allowed to differ in and do.

    Raises ComparisonError: they differ in another field, or `allow_different` names no field.
    """
    for field in allow_different:
        if field not in FIELDS:
            raise ComparisonError(
                f"--allow-different {plain(field)}: no such field; there are {', '.join(FIELDS)}"
            )
    per_run = [constants(run) for run in runs]
    shared: dict[str, str | None] = {}
    different: dict[str, list[str | None]] = {}
    for field in FIELDS:
        values = [one[field] for one in per_run]
        if len(set(values)) == 1:
            shared[field] = values[0]
        elif field in _OF_MANIFEST and len({value for value in values if value is not None}) == 1:
            shared[field] = None
        elif field in allow_different:
            different[field] = values
        else:
            other = next(index for index, value in enumerate(values) if value != values[0])
            raise ComparisonError(
                f"{runs[other].path}: {field} is {_shown(values[other])}, in {runs[0].path} it is "
                f"{_shown(values[0])}; a comparison holds it constant. If that is meant: "
                f"--allow-different {field}"
            )
    return shared, different


def _as_text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, sort_keys=True)


def _shown(value: str | None) -> str:
    return "not recorded" if value is None else plain(value, 80)
