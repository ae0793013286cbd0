"""What runs must have in common before their candidates are compared: one thing is changed at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import ComparisonError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kvtrace.runs.open import Run
    from kvtrace.runs.record import SourceRecord

_OF_SOURCE: Final[dict[str, Callable[[SourceRecord], str | None]]] = {
    "weights_digest": lambda source: source.model.weights_digest,
    "model_revision": lambda source: source.model.revision,
    "tokenizer_revision": lambda source: source.model.tokenizer_revision or source.model.tokenizer_digest,
    "chat_template_digest": lambda source: source.model.chat_template_digest,
    "attention_backend": lambda source: ", ".join(source.attention_backends) or None,
    "engine_version": lambda source: f"{source.engine.name} {source.engine.version}",
    "trace_sha256": lambda source: source.trace_sha256,
}
FIELDS: Final = (*_OF_SOURCE, "evaluator_revision")


def constants(run: Run) -> dict[str, str | None]:
    """Return each field of the run that a comparison holds constant; None where nobody recorded it.

    A run of several traces has all their values, sorted.
    """
    found: dict[str, str | None] = {}
    for field, read in _OF_SOURCE.items():
        values = {read(source) for source in run.record.sources}
        known = sorted(value for value in values if value is not None)
        found[field] = ", ".join(known) if known else None
    found["evaluator_revision"] = run.record.kvtrace_version
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


def _shown(value: str | None) -> str:
    return "not recorded" if value is None else plain(value, 80)
