"""The serving manifest as far as traces and candidates know it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from kvtrace.calibration.manifest import parse_manifest
from kvtrace.runs.manifest import MeasuredManifest, ServingManifest
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvtrace.candidates.bind import Bound
    from kvtrace.candidates.candidate import Candidate
    from kvtrace.trace.reader import Trace

_FOUND_OUT_AT_START: Final = {"cache_config": {"num_gpu_blocks"}}
"""Settings that the engine derives from the memory it finds free: they differ from start to start."""


def measured_manifest(
    traces: Sequence[Trace], bound: Bound, candidate_id: str | None = None
) -> MeasuredManifest:
    """Return what is known of the run; the rules are those of `ServingManifest`'s fields.

    candidate_id: the supplied one; where it names a candidate of the run, `scale_*` describe that one.
    """
    first, *others = [_of_trace(trace) for trace in traces]
    shared = {name: value for name, value in first.items() if all(one[name] == value for one in others)}
    subject = _subject(bound, candidate_id)
    of_subject, disagreeing = _of_subject(subject, bound) if subject else ({}, set())
    tokenizers = {trace.record.model.tokenizer_digest for trace in traces}
    if len(tokenizers) > 1:
        disagreeing.add("tokenizer_revision")
    return MeasuredManifest(
        measured=ServingManifest(**shared, **of_subject, evaluator_revision=__version__),
        by_default=ServingManifest(
            baseline_id=next((one.name for one in bound.candidates if one.is_baseline), None),
            candidate_id=subject and subject.name,
            tokenizer_revision=tokenizers.pop() if len(tokenizers) == 1 else None,
            calibration_corpus_sha256=subject and _calibration_corpus(subject),
            evaluation_corpus_sha256=corpus_sha256(trace.digest for trace in traces),
        ),
        disagreeing=frozenset(first.keys() - shared.keys() | disagreeing),
    )


def attention_backends(trace: Trace) -> tuple[str, ...]:
    """Return the distinct backends of the captured layers, sorted."""
    return tuple(sorted({layer.backend for layer in trace.layers.values()}))


def corpus_sha256(trace_digests: Iterable[str]) -> str:
    """Return the digest of a set of traces: of one trace its own, of several the SHA-256 over them sorted.

    Calibration and evaluation on the same traces give the same value, whatever rows of them were chosen.

    >>> corpus_sha256(["ab"])
    'ab'
    >>> corpus_sha256(["cd", "ab"]) == hashlib.sha256(b"ab" + bytes([10]) + b"cd").hexdigest()
    True
    """
    digests = sorted(set(trace_digests))
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _of_trace(trace: Trace) -> dict[str, Any]:
    model, engine = trace.record.model, trace.record.engine
    return {
        "model_revision": model.revision,
        "tokenizer_revision": model.tokenizer_revision,
        "chat_template_digest": model.chat_template_digest,
        "weights_digest": model.weights_digest,
        "attention_backend": ", ".join(attention_backends(trace)) or None,
        "kv_dtype": model.dtype if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype,
        "effective_args": _without_found_out(engine.settings) or None,
        "trace_sha256": trace.digest,
    }


def _without_found_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {key: one for key, one in value.items() if key not in _FOUND_OUT_AT_START[name]}
        if name in _FOUND_OUT_AT_START and isinstance(value, dict)
        else value
        for name, value in settings.items()
    }


def _subject(bound: Bound, candidate_id: str | None) -> Candidate | None:
    valid = [one for one in bound.valid if not one.is_baseline]
    named = [one for one in valid if one.name == candidate_id]
    first = min((one.precedence for one in valid), default=0)
    found = named or [one for one in valid if one.precedence == first]
    return found[0] if len(found) == 1 else None


def _of_subject(subject: Candidate, bound: Bound) -> tuple[dict[str, Any], set[str]]:
    """Return the candidate's fields, and the names of those in which the traces disagree."""
    artifact, applied = subject.artifact, bound.of(subject)
    facts: dict[str, set[Any]] = {
        "scale_granularity": {scales.granularity for scales in applied},
        "scale_artifact_sha256": {artifact.sha256 if artifact else None},
        "skipped_layers": {
            tuple(sorted({layer for (layer, _, _), origin in scales.origins.items() if origin == "skipped"}))
            for scales in applied
        },
    }
    return (
        {name: next(iter(values)) for name, values in facts.items() if len(values) == 1},
        {name for name, values in facts.items() if len(values) > 1},
    )


def _calibration_corpus(subject: Candidate) -> str | None:
    calibration = parse_manifest(subject.artifact.manifest) if subject.artifact else None
    return corpus_sha256(trace.digest for trace in calibration.dataset.traces) if calibration else None
