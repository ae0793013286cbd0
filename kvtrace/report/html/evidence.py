"""What the report rests on: what ran, what was captured, what was found, what it was made from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import count
from kvtrace.plain_text import plain
from kvtrace.report.html.answer import mark
from kvtrace.report.html.page import short_positions
from kvtrace.report.shown import shown_candidates
from kvtrace.report.statements import (
    candidate_statement,
    effect_statement,
    ended_statement,
    sampling_rules,
)
from kvtrace.report.wording import ended
from kvtrace.stats.fractions import MIN_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.finding import Finding
    from kvtrace.report.answer.model import State
    from kvtrace.report.html.tables import ChartData
    from kvtrace.report.sections import Captured, Report
    from kvtrace.runs.manifest import ServingManifest

_NAME: Final = 200
_WHOLE: Final = 20_000
_SENTENCES: Final = 4_000
_MARKS: Final = {
    "error": mark("fault"),
    "warning": mark("warning"),
    "note": {"sign": "·", "word": "note", "level": "none"},
}


def evidence_parts(
    report: Report, data: ChartData, workloads: list[str], serving: ServingManifest
) -> dict[str, Any]:
    """Return the template's `evidence`; every name is plain text."""
    return {
        "finding": _heading(report),
        "state": evidence_state(report),
        "ran": list(ran_parts(report)),
        "candidates": [
            (plain(one.candidate, _NAME), candidate_statement(report, one))
            for one in shown_candidates(report)
        ],
        "findings": [_found(one) for one in report.findings],
        "sampling": ended("Sampled: " + "; ".join(sampling_rules(report, _NAME))) if report.sampling else "",
        "coverage": list(_coverage(data, workloads)),
        "captured": [captured_parts(one) for one in report.captured],
        "manifest": [*_manifest(report), *_serving(serving)],
    }


def evidence_state(report: Report) -> State:
    """Return whether there is enough to judge by."""
    if not all(source.closed or source.running for source in report.sources):
        return "warning"
    return "too few" if any(one.id == "coverage" for one in report.findings) else "sound"


def _heading(report: Report) -> str:
    tokens = sum(one.num_prefill_tokens + one.num_decode_tokens for one in report.captured)
    requests = sum(one.num_captured_requests for one in report.captured)
    amount = f"{count(requests, 'request')} with {count(tokens, 'token')}"
    few = [one for one in report.captured if 0 < one.num_captured_requests < MIN_REQUESTS]
    if not few:
        return f"{amount} were captured"
    return f"{amount}; too few in {count(len(few), 'workload')} of {len(report.captured):,}"


def _found(one: Finding) -> dict[str, Any]:
    about = [f"under {plain(one.candidate, _NAME)}"] if one.candidate else []
    if one.confidence != "certain":
        about.append(f"confidence {one.confidence}")
    if one.num_requests is not None:
        about.append(f"from {count(one.num_requests, 'request')}")
    if one.explained_by:
        about.append(f"explained by {', '.join(one.explained_by)}")
    return {
        "mark": _MARKS[one.severity],
        "id": one.id,
        "about": ", ".join(about),
        "message": ended(plain(one.message, _SENTENCES)),
        "action": plain(one.action, _SENTENCES),
        "command": None if one.command is None else plain(one.command, _SENTENCES),
        "sql": "\n".join(plain(line, _SENTENCES) for line in one.sql.splitlines()),
    }


def ran_parts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield each trace's name, and what was served when it was captured."""
    for source in report.sources:
        scales = [one for one in report.loaded if one.source == source.name]
        captured = datetime.fromtimestamp(source.captured_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
        text = (
            f"{plain(source.engine, _NAME)} {plain(source.engine_version, _NAME)} on "
            f"{plain(source.device, _NAME)}, captured {captured}; {effect_statement(source, scales)}"
        )
        yield plain(source.name, _NAME), text + ended_statement(source)


def _coverage(data: ChartData, workloads: list[str]) -> Iterator[dict[str, Any]]:
    label = dict(zip(data.workloads, workloads, strict=True))
    by_phase = sorted(data.coverage, key=lambda row: row["phase"] != "prefill")
    for phase, group in groupby(by_phase, key=lambda row: row["phase"]):
        strata = list(group)
        octaves = sorted({row["position_octave"] for row in strata})
        rows = []
        for workload, of_workload in groupby(strata, key=lambda row: row["workload"]):
            known = {row["position_octave"]: row for row in of_workload}
            rows.append({"workload": label[workload], "cells": [_cell(known.get(one)) for one in octaves]})
        yield {"name": phase, "positions": [short_positions(one) for one in octaves], "rows": rows}


def _cell(row: dict[str, Any] | None) -> dict[str, str]:
    if row is None or row["num_tokens"] == 0:
        return {"level": "s0", "tokens": "none", "requests": ""}
    requests = row["num_requests"]
    shade = 1 + sum(requests >= bound for bound in (MIN_REQUESTS, 4 * MIN_REQUESTS, 16 * MIN_REQUESTS))
    few = " few" if requests < MIN_REQUESTS else ""
    return {"level": f"s{shade}{few}", "tokens": f"{row['num_tokens']:,}", "requests": f"{requests:,} req."}


def captured_parts(one: Captured) -> dict[str, Any]:
    """Return a row of the table of what was captured: its workload, and amounts as text."""
    numbers = (
        one.num_captured_requests,
        one.num_requests,
        one.num_prefill_tokens,
        one.num_decode_tokens,
        one.max_prompt_tokens,
        one.max_output_tokens,
        one.num_missing,
        one.num_dropped,
        one.num_incomplete_requests,
    )
    return {
        "name": plain(one.workload, _NAME),
        "cells": ["–" if number is None else f"{number:,}" for number in numbers],
    }


def _manifest(report: Report) -> Iterator[tuple[str, str]]:
    made = datetime.fromtimestamp(report.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield "run", f"{plain(report.run or 'not kept', _WHOLE)}, made {made} on {report.device}"
    for source in report.sources:
        name = plain(source.name, 60)
        yield f"trace {name}", plain(source.path, _WHOLE)
        yield f"trace {name}, SHA-256", source.trace_sha256
        yield f"trace {name}, model", plain(source.model, _WHOLE)
        yield f"trace {name}, weights", plain(source.weights_digest or "not recorded", _WHOLE)
        backends = ", ".join(source.attention_backends) or "backend not recorded"
        yield (
            f"trace {name}, engine",
            plain(
                f"{source.engine} {source.engine_version}, {source.kv_cache_dtype} cache, {backends}", _WHOLE
            ),
        )
    for candidate in report.candidates:
        if candidate.artifact:
            name = plain(candidate.candidate, 60)
            yield f"candidate {name}", plain(candidate.artifact, _WHOLE)
            yield f"candidate {name}, SHA-256", candidate.artifact_sha256 or "not recorded"
    for workload in sorted({one.workload for one in report.captured}):
        if len(workload) > _NAME:
            yield "workload, whole label", plain(workload, _WHOLE)


def _serving(manifest: ServingManifest) -> Iterator[tuple[str, str]]:
    """Yield the serving manifest by its own names; what nobody supplied is absent."""
    for name, value in json.loads(manifest.model_dump_json()).items():
        yield name, plain(value if isinstance(value, str) else json.dumps(value), _WHOLE)
