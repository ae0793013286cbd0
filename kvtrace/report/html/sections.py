"""The parts of the page that need no script: the verdict, the tables, the coverage, the manifest."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kvtrace.figures import decibel, percent
from kvtrace.plain_text import plain
from kvtrace.report.html.page import short_positions
from kvtrace.report.html.verdict import verdict_parts
from kvtrace.report.statements import (
    candidate_statement,
    captured_amount,
    effect_statement,
    rounding_floors,
    sampling_rules,
)
from kvtrace.report.wording import minute
from kvtrace.stats.fractions import MIN_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.html.tables import ChartData
    from kvtrace.report.sections import CandidateSummary, Report
    from kvtrace.runs.manifest import ServingManifest

_NAME: Final = 200
_WHOLE: Final = 20_000


def sections(
    report: Report, data: ChartData, page: dict[str, Any], serving: ServingManifest
) -> dict[str, Any]:
    """Return what the template shows as text and tables; every name is plain text."""
    models = ", ".join(sorted({plain(source.model, _NAME) for source in report.sources}))
    return {
        "names": ", ".join(plain(source.name, _NAME) for source in report.sources),
        "subtitle": f"{models} · {captured_amount(report)}",
        **verdict_parts(report),
        "ran": list(_ran(report)),
        "layers": sorted({layer for layer, _ in data.heads}),
        "floor_note": " ".join(rounding_floors(report)),
        "head_tables": [
            (index, list(_worst_heads(report, data, name))) for index, name in enumerate(data.candidates)
        ],
        "candidate_rows": [row for one in report.candidates for row in _candidate_rows(one)],
        "sampling": " ".join(f"{one}." for one in sampling_rules(report, _NAME)),
        "coverage": list(_coverage(data, page["workloads"])),
        "captured": [_captured(one) for one in report.captured],
        "manifest": [*_manifest(report), *_serving(serving)],
        "not_visible": ", ".join(report.not_visible),
        "version": report.kvtrace_version,
    }


def _ran(report: Report) -> Iterator[tuple[str, str]]:
    for source in report.sources:
        scales = [one for one in report.loaded if one.source == source.name]
        captured = minute(source.captured_at)
        text = (
            f"{plain(source.engine, _NAME)} {plain(source.engine_version, _NAME)} on "
            f"{plain(source.device, _NAME)}, captured {captured}; {effect_statement(source, scales)}"
        )
        closed = "" if source.closed else " NOT closed in order: its last rows may be missing."
        yield plain(source.name, _NAME), text + closed
    for candidate in report.candidates:
        yield plain(candidate.candidate, _NAME), candidate_statement(report, candidate)


def _worst_heads(report: Report, data: ChartData, candidate: str) -> Iterator[dict[str, str]]:
    places = {head: index for index, head in enumerate(data.heads)}
    for head in report.heads:
        measured = head.measured
        if head.candidate != candidate or head.rank > report.top or not measured.num_out_of_range:
            continue
        place = places[head.layer, head.kv_head]
        yield {
            "name": f"layer {head.layer} head {head.kv_head} {head.tensor.upper()}",
            "pick": f"{place} {'kv'.index(head.tensor)}",
            "out_of_range": percent(measured.out_of_range_frac),
            "clipped": percent(measured.clipped_frac),
            "vectors": percent(measured.vectors_out_of_range_frac),
            "sqnr": decibel(measured.sqnr_db),
            "positions": "–" if head.worst_positions is None else plain(head.worst_positions.name, _NAME),
            "workload": "–" if head.worst_workload is None else plain(head.worst_workload.name, _NAME),
        }


def _candidate_rows(candidate: CandidateSummary) -> Iterator[dict[str, Any]]:
    name = plain(candidate.candidate, _NAME)
    if candidate.status == "invalid":
        yield {"name": name, "note": f"invalid: {plain(candidate.reason or 'no reason recorded', 400)}"}
    elif candidate.kind == "bf16":
        yield {"name": name, "note": "not quantized: nothing is lost"}
    else:
        for total in candidate.tensors:
            measured = total.measured
            yield {
                "name": name,
                "note": None,
                "tensor": total.tensor.upper(),
                "out_of_range": percent(measured.out_of_range_frac),
                "clipped": percent(measured.clipped_frac),
                "flushed": percent(measured.flushed_frac),
                "sqnr": decibel(measured.sqnr_db),
                "clip_error": percent(measured.clip_error_frac),
                "heads": f"{total.num_heads_clipped:,} of {total.num_heads:,}",
            }


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


def _captured(one: Any) -> dict[str, Any]:
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
    made = minute(report.created_at)
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
