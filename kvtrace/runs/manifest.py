"""The serving manifest: what a run's numbers were measured on, by the names that serving teams exchange."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer

from kvtrace.errors import InputError
from kvtrace.files.regular import read_regular
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.trace.format import Record

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES: Final = 1_000_000


class ServingManifest(Record):
    """`manifest` of run.json. A field that nobody supplied is absent there, and None here.

    "Measured" fields come from the traces and the candidates: a supplied value must equal them, and where
    the traces disagree the field is absent and cannot be supplied. "By default" fields are filled in only
    where nothing was supplied. All others come from `--manifest` alone.
    """

    baseline_id: str | None = None
    """By default `bf16`, the unquantized candidate, where the run has it."""
    candidate_id: str | None = None
    """By default the only valid candidate with scales of its own, else `effective`, else `unit`; absent where
    several were given. A supplied name of a candidate has the `scale_*` fields describe that one."""
    image_digest: str | None = None
    """Of the serving container."""
    model_revision: str | None = None
    """Measured: as the engine was asked for it; absent from the measurement where it was not."""
    tokenizer_revision: str | None = None
    """Measured: as the engine was asked for it. By default the digest of the tokenizer's files."""
    chat_template_digest: str | None = None
    """Measured."""
    weights_digest: str | None = None
    """Measured: over all tensors that are no scales."""
    attention_backend: str | None = None
    """Measured: the captured layers' backends, sorted, joined with a comma."""
    kernel_revision: str | None = None
    gpu_inventory: str | tuple[str, ...] | None = None
    kv_dtype: str | None = None
    """Measured: the captured engine's cache dtype; the model's own where the engine says `auto`."""
    scale_granularity: str | None = None
    """Measured: of the candidate of `candidate_id`, as its engine applies it."""
    scale_artifact_sha256: str | None = None
    """Measured: of that candidate's scale tensors as read; absent where it has no artifact."""
    calibration_corpus_sha256: str | None = None
    """By default, where that artifact has a calibration manifest, `corpus_sha256` of the traces it names."""
    evaluation_corpus_sha256: str | None = None
    """By default `corpus_sha256` of the traces that were replayed."""
    skipped_layers: tuple[int, ...] | None = None
    """Measured: layers that the candidate of `candidate_id` leaves unquantized; empty: none."""
    effective_args: dict[str, Any] | None = None
    """Measured: the captured engine's settings by its own names, without what it found out at start-up (the
    number of cache blocks). Supplied ones are added, none replaces a measured one."""
    trace_sha256: str | None = None
    """Measured: the digest of the only trace."""
    load_generator: str | None = None
    """By name and version, as it offered the load."""
    arrival_trace_sha256: str | None = None
    """Of the planned arrivals that were replayed."""
    interval: float | None = None
    """Seconds in which planned arrivals count."""
    drain: float | None = None
    """Seconds after the interval in which an answer may still end."""
    run_order: str | None = None
    """In which order the variants' runs were made, such as `shuffled within pairs`."""
    reuse_policy: str | None = None
    """Of prefixes, such as `prefix cache off` or `salted`."""
    unsupported: str | None = None
    """Why this cell cannot be served: it has no runs, and is invalid, which is no failed score."""
    calibration_approved_by: str | None = None
    """Who approved the data that the scales were calibrated on."""
    evaluator_revision: str | None = None
    """Measured: the version of kvtrace that replayed."""

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}

    def given(self) -> dict[str, Any]:
        """Return the fields that are there, by name."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SuppliedManifest:
    """The fields of a `--manifest` file."""

    path: Path
    manifest: ServingManifest


@dataclass(frozen=True, slots=True)
class MeasuredManifest:
    """What the traces and the candidates say."""

    measured: ServingManifest
    by_default: ServingManifest
    disagreeing: frozenset[str] = frozenset()
    """Fields in which the traces differ."""


def load_manifest(path: Path) -> SuppliedManifest:
    """Return the fields in the JSON object at `path`; a null counts as not supplied.

    Raises InputError: it cannot be read, is no JSON object, or has an unknown name or an unfit value.
    """
    content = _read_object(path)
    known = ServingManifest.model_fields
    for name in content:
        if name not in known:
            raise InputError(f"{path}: {name[:80]!r}: no such field; a manifest has {', '.join(known)}")
    try:
        return SuppliedManifest(path, ServingManifest.model_validate_json(json.dumps(content), strict=True))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {first['loc'][0]}: {first['msg'][:200]}") from error


def complete_manifest(found: MeasuredManifest, supplied: SuppliedManifest | None) -> ServingManifest:
    """Return what was measured, with what was supplied, with defaults for the rest.

    Raises InputError: a supplied field contradicts the measured one; the text names it.
    """
    measured, by_default = found.measured.given(), found.by_default.given()
    if supplied is None:
        return ServingManifest(**(by_default | measured))
    given = supplied.manifest.given()
    for name in given:
        if name in found.disagreeing:
            raise InputError(
                f"{supplied.path}: {name} is {_shown(given[name])}, but the traces differ in it; "
                "leave it out, or replay each trace by itself"
            )
    if "effective_args" in given:
        own = measured.pop("effective_args", {})
        given["effective_args"] = own | given["effective_args"]
        _refuse_contradictions(supplied.path, "effective_args.", own, given["effective_args"])
    _refuse_contradictions(supplied.path, "", measured, given)
    return ServingManifest(**(by_default | measured | given))


def _refuse_contradictions(path: Path, prefix: str, measured: dict[str, Any], given: dict[str, Any]) -> None:
    for name, value in given.items():
        if name in measured and measured[name] != value:
            raise InputError(
                f"{path}: {prefix}{name[:80]} is {_shown(value)}, but what was replayed has "
                f"{_shown(measured[name])}; correct it, or leave it out: kvtrace fills it in"
            )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, _MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; expected a manifest in JSON") from error
    try:
        content = parse_strict_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object of manifest fields")
    return content


def _shown(value: object) -> str:
    return repr(value)[:100]
