"""What differs between two deployments besides their scales: model, engine, setup, traffic."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kvtrace.gate.constant import constants
from kvtrace.report.before_after.model import Difference
from kvtrace.report.statements import sampling_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.report.sections import Report
    from kvtrace.runs.open import Run

_GROUP: Final = " settings"
_OF_ITSELF: Final = ("trace_sha256", "evaluation_corpus_sha256", "baseline_id", "candidate_id")
"""Differ between any two deployments, or say nothing of either."""
_DIGEST, _ARTIFACT, _JUDGED = "digest of the scales", "scale artifact", "scales judged"
_NAMES: Final = {
    "evaluator_revision": "kvtrace version",
    "kv_dtype": "cache dtype",
    "scale_artifact_sha256": _DIGEST,
}
_OF_SCALES: Final = (_DIGEST, _ARTIFACT, _JUDGED)
"""Say what the heads' scales say already."""
_SHA256: Final = re.compile("[0-9a-f]{64}")
_ARGUMENTS: Final = "effective_args"
_Value = str | dict[str, str] | None
"""A fact in words; of a group of settings each by its own name; None: not recorded."""


def differences(
    before: Run, after: Run, reports: tuple[Report, Report]
) -> tuple[list[Difference], list[str]]:
    """Return what is not the same, and the names of what is; what nobody recorded is in neither."""
    facts = [dict(_facts(run, report)) for run, report in zip((before, after), reports, strict=True)]
    names = dict.fromkeys(name for one in facts for name in one)
    differ: list[Difference] = []
    same: list[str] = []
    for name in names:
        first, second = (one.get(name) for one in facts)
        if first == second and first is not None:
            same.append(name)
        elif first != second:
            differ += _differing(name, first, second)
    return differ, same


def besides(differ: Sequence[Difference]) -> list[str]:
    """Return the names of what differs besides the scales."""
    return [one.what for one in differ if one.what not in _OF_SCALES]


def in_short(value: str | None) -> str:
    """Return a value for people: of a digest its first digits.

    >>> in_short("5e" * 32), in_short("fp8"), in_short(None)
    ('5e5e5e5e5e5e…', 'fp8', 'not recorded')
    """
    if value is None:
        return "not recorded"
    return f"{value[:12]}…" if _SHA256.fullmatch(value) else value


def _differing(name: str, first: _Value, second: _Value) -> Iterator[Difference]:
    """Yield what differs; of a group of settings the ones that do."""
    if not isinstance(first, dict) and not isinstance(second, dict):
        yield Difference(name, first, second)
        return
    old, new = (one if isinstance(one, dict) else {} for one in (first, second))
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            yield Difference(f"{name.removesuffix(_GROUP)}: {key}", old.get(key), new.get(key))


def _facts(run: Run, report: Report) -> Iterator[tuple[str, _Value]]:
    yield "model", ", ".join(sorted({source.model for source in report.sources}))
    manifest = run.record.manifest.given()
    held = {name: value for name, value in constants(run).items() if name != _ARGUMENTS}
    for name, value in (_as_texts(manifest) | held).items():
        if name not in _OF_ITSELF:
            yield _NAMES.get(name, _words(name)), value
    yield from _settings(manifest.get(_ARGUMENTS) or {})
    yield "device", ", ".join(sorted({source.device for source in report.sources}))
    yield from _scales(report)
    yield from _traffic(report)


def _as_texts(values: dict[str, Any]) -> dict[str, str | None]:
    return {name: _as_text(value) for name, value in values.items() if name != _ARGUMENTS}


def _settings(arguments: dict[str, Any]) -> Iterator[tuple[str, _Value]]:
    """Yield the engine's settings, those of one of its parts together.

    >>> dict(_settings({"scheduler_config": {"max_num_seqs": 8, "policy": None}, "enforce_eager": False}))
    {'scheduler settings': {'max num seqs': '8', 'policy': 'none'}, 'engine: enforce eager': 'no'}
    """
    for name, value in arguments.items():
        if isinstance(value, dict) and value:
            group = {_words(key): _as_text(one) or "none" for key, one in value.items()}
            yield _words(name.removesuffix("_config")) + _GROUP, group
        else:
            yield f"engine: {_words(name)}", _as_text(value)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _as_text(value: Any) -> str | None:
    """Return a recorded value for people; None: not recorded.

    >>> [_as_text(value) for value in ((), [0, 29], {"a": 1}, True, None)]
    ['none', '0, 29', '{"a": 1}', 'yes', None]
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return json.dumps(value, sort_keys=True, default=str)


def _scales(report: Report) -> Iterator[tuple[str, str | None]]:
    found = [one for one in report.candidates if one.candidate == report.answer.candidate]
    for one in found:
        yield _JUDGED, one.candidate
        yield _ARTIFACT, one.artifact
        yield "written as", f"{one.format} by {one.engine}" if one.engine else None


def _traffic(report: Report) -> Iterator[tuple[str, str | None]]:
    yield "workloads", ", ".join(sorted({one.workload for one in report.captured})) or None
    yield "captured requests", f"{sum(one.num_captured_requests for one in report.captured):,}"
    for name, lengths in (
        ("longest prompt", [one.max_prompt_tokens for one in report.captured]),
        ("longest output", [one.max_output_tokens for one in report.captured]),
    ):
        known = [length for length in lengths if length is not None]
        yield name, f"{max(known):,} tokens" if known else None
    yield "sampling", "; ".join(dict.fromkeys(sampling_rules(report, 0))) or None
