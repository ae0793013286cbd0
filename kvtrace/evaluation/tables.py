"""The tables of a run: the one place that writes what a replay yields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_jsonable_python

from kvtrace.calibration.manifest import parse_manifest
from kvtrace.candidates.applied import AppliedScales
from kvtrace.evaluation.attended import AttentionSums
from kvtrace.evaluation.attention_columns import head_columns, layer_columns
from kvtrace.evaluation.audited import ArtifactFindings
from kvtrace.evaluation.magnitudes import MagnitudeCounts
from kvtrace.evaluation.ordinary import OrdinaryChannels
from kvtrace.evaluation.sum_columns import (
    cell_columns,
    chosen,
    group_columns,
    magnitude_columns,
    ordinary_columns,
    repeated,
    sweep_columns,
    vector_columns,
)
from kvtrace.evaluation.sums import CellSums, Vectors
from kvtrace.evaluation.sweep import SweepSums
from kvtrace.findings.finding import IN_EFFECT
from kvtrace.formats.coding import Limits
from kvtrace.numerics.captured import largest_code
from kvtrace.numerics.formats import find_format
from kvtrace.numerics.limits import max_in_range_code, max_unclipped_code
from kvtrace.numerics.rounding_floor import rounding_floor_db
from kvtrace.runs import schema
from kvtrace.runs.attention_tables import ATTENTION, ATTENTION_LAYERS
from kvtrace.runs.traffic_tables import LAYERS, REQUESTS, ROWS, SAMPLING
from kvtrace.trace.completeness import rows_lost
from kvtrace.trace.strata import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvtrace.candidates.bind import Bound
    from kvtrace.candidates.candidate import Candidate
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.findings.finding import Finding
    from kvtrace.runs.write import RunWriter
    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import Trace

    SourceValue = (
        AppliedScales
        | ArtifactFindings
        | SweepSums
        | MagnitudeCounts
        | Vectors
        | CellSums
        | OrdinaryChannels
        | AttentionSums
    )
    """What the replay of one source yields."""


def write_candidates(run: RunWriter, bound: Bound) -> None:
    """Write the candidates, valid and invalid, in the order asked for."""
    candidates = bound.candidates
    applied = [bound.of(one) for one in candidates]
    reasons = [bound.reasons.get(one.name) for one in candidates]
    artifacts = [one.artifact for one in candidates]
    run.write(
        schema.CANDIDATES,
        {
            "candidate": [one.name for one in candidates],
            "ordinal": list(range(len(candidates))),
            "status": ["invalid" if reason else "valid" for reason in reasons],
            "reason": [reason and str(reason) for reason in reasons],
            "reason_id": [reason and reason.reason for reason in reasons],
            "hypothetical": [not found or any(one.hypothetical for one in found) for found in applied],
            **_attributes(candidates, "kind", "engine", "format"),
            # The finer where sources differ.
            "granularity": [
                min((one.granularity for one in found if one.granularity), default=None) for found in applied
            ],
            "artifact": [artifact and str(artifact.path) for artifact in artifacts],
            "artifact_sha256": [artifact and artifact.sha256 for artifact in artifacts],
            "calibrated_max_length": [artifact and _calibrated_length(artifact) for artifact in artifacts],
            "note": [
                "; ".join(dict.fromkeys(one.note for one in found if one.note)) or None for found in applied
            ],
            "rounding_floor_db": [_rounding_floor_db(one) for one in candidates],
        },
    )


def write_source(run: RunWriter, source: str, trace: Trace, values: Iterable[SourceValue]) -> None:
    """Write one trace's part of every table, value by value, as they are yielded."""
    _write_layers(run, source, trace)
    _write_trace(run, source, trace)
    for value in values:
        match value:
            case AppliedScales():
                run.write(schema.SCALES, _scale_columns(source, trace, value))
            case ArtifactFindings():
                if value.findings:
                    run.write(schema.FINDINGS, _finding_columns(source, value))
            case SweepSums():
                if value.tensors:
                    run.write(schema.SWEEP, sweep_columns(source, value))
            case MagnitudeCounts():
                run.write(schema.MAGNITUDES, magnitude_columns(source, value))
            case Vectors():
                run.write(schema.VECTORS, vector_columns(source, value))
            case OrdinaryChannels():
                run.write(schema.ORDINARY_CHANNELS, ordinary_columns(source, value))
            case AttentionSums():
                run.write(ATTENTION, head_columns(source, value))
                if value.projected is not None:
                    run.write(ATTENTION_LAYERS, layer_columns(source, value))
            case CellSums():
                if value.cells.request_group is None:
                    run.write(schema.CELLS, cell_columns(source, value))
                else:
                    run.write(schema.GROUPS, group_columns(source, value))


def _rounding_floor_db(candidate: Candidate) -> float | None:
    cache = candidate.cache
    if cache is None:
        return rounding_floor_db(candidate.engine, candidate.format)
    codings = {coding for form in cache.forms for coding in (form.k, form.v)}
    return rounding_floor_db(candidate.engine, codings.pop().float_format) if len(codings) == 1 else None


def _calibrated_length(artifact: ScaleArtifact) -> int | None:
    manifest = parse_manifest(artifact.manifest)
    return manifest.dataset.calibration.max_position + 1 if manifest else None


def _write_layers(run: RunWriter, source: str, trace: Trace) -> None:
    layers = [trace.layers[index] for index in sorted(trace.layers)]
    run.write(
        LAYERS,
        {
            "source": [source] * len(layers),
            "layer": [layer.index for layer in layers],
            **_attributes(layers, "dtype", "backend", "kv_cache_dtype", "head_dim_k", "head_dim_v"),
            "num_kv_heads": [len(layer.kv_heads) for layer in layers],
            "residual_weight": [trace.attention.residual_weight(layer.index) for layer in layers],
        },
    )


def _write_trace(run: RunWriter, source: str, trace: Trace) -> None:
    rules = [trace.sampling[number] for number in sorted(trace.sampling)]
    run.write(
        SAMPLING,
        {
            "source": [source] * len(rules),
            **_attributes(rules, "sampling_id", "position_stride", "request_fraction"),
        },
    )
    tokens = trace.tokens
    numbers, counts = np.unique(tokens.request, return_counts=True)
    num_rows = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    requests, lost = [trace.requests[number] for number in sorted(trace.requests)], rows_lost(trace)
    copied = ("request", "workload", "client_id", "prompt_hash", "sampled", "sampling_id", "prompt_tokens",
              "output_tokens", "computed_tokens", "status")  # fmt: skip
    run.write(
        REQUESTS,
        {
            "source": [source] * len(requests),
            **_attributes(requests, *copied),
            "num_rows": [num_rows.get(request.request, 0) for request in requests],
            "num_missing": [sum(end - start for start, end in request.missing) for request in requests],
            "num_dropped": [lost[request.request] for request in requests],
        },
    )
    run.write(
        ROWS,
        {
            "source": repeated(source, len(tokens)),
            "row": np.arange(len(tokens)),
            "request": tokens.request,
            "position": tokens.position,
            "position_octave": tokens.octave,
            "phase": chosen(PHASES, tokens.phase),
            "sampling_id": tokens.sampling_id,
        },
    )


def _scale_columns(source: str, trace: Trace, applied: AppliedScales) -> dict[str, Any]:
    """Return one candidate's scales in one trace, with the largest codes that they cover."""
    keys, candidate = list(applied.values), applied.candidate
    calibrated = _calibrated_amax(candidate.artifact) if candidate.artifact else {}
    return {
        "source": repeated(source, len(keys)),
        "candidate": repeated(candidate.name, len(keys)),
        "layer": [layer for layer, _, _ in keys],
        "kv_head": [head for _, head, _ in keys],
        "tensor": [tensor for _, _, tensor in keys],
        "scale": list(applied.values.values()),
        "calibrated_amax": [calibrated.get(key) for key in keys],
        **_limits(trace, applied),
        "origin": [applied.origins[key] for key in keys],
    }


def _calibrated_amax(artifact: ScaleArtifact) -> dict[ScaleKey, float]:
    manifest = parse_manifest(artifact.manifest)
    groups = manifest.groups if manifest else ()
    return {(one.layer, one.kv_head, one.tensor): one.calibrated_amax for one in groups}


def _limits(trace: Trace, applied: AppliedScales) -> dict[str, list[Any]]:
    """Return covered_amax and both code limits of each scale; NULL where nothing has a range."""
    values = list(applied.values.items())
    limits: dict[str, list[Any]] = {
        name: [None] * len(values) for name in ("covered_amax", "max_in_range_code", "max_unclipped_code")
    }
    groups: dict[tuple[str, ServingSetup | Limits], list[int]] = {}
    for i, (key, value) in enumerate(values):
        layer, _, tensor = key
        coding = applied.codings.get((layer, tensor))
        rule = coding.limits if coding else applied.setup_of(layer, tensor) if value is not None else None
        if rule is not None:
            groups.setdefault((trace.layers[layer].dtype, rule), []).append(i)
    for (dtype, rule), index in groups.items():
        # A coding without scales has its range over 1.0.
        scale = np.array([1.0 if values[i][1] is None else values[i][1] for i in index], np.float32)
        for name, column in _limits_of(rule, scale, dtype).items():
            for i, value in zip(index, column.tolist(), strict=True):
                limits[name][i] = value
    return limits


def _limits_of(
    rule: ServingSetup | Limits, scale: NDArray[np.float32], dtype: str
) -> dict[str, NDArray[Any]]:
    """Return the three limits of some scales. rule: of static FP8, or of a coding."""
    if isinstance(rule, Limits):
        covered, unclipped = (scale * np.float32(limit) for limit in rule)
        return {
            "covered_amax": covered,
            "max_in_range_code": largest_code(covered, dtype),
            "max_unclipped_code": largest_code(unclipped, dtype),
        }
    chosen = {"engine": rule.engine, "format": rule.fp8_format}
    return {
        "covered_amax": scale * np.float32(find_format(rule.fp8_format).max_value),
        "max_in_range_code": max_in_range_code(scale, dtype, **chosen),
        "max_unclipped_code": max_unclipped_code(scale, dtype, **chosen),
    }


def _evidence(finding: Finding) -> dict[str, Any]:
    """Return a finding's numbers, with what it says of tensors and of what ran: the table has no column."""
    found = dict(finding.evidence[0])
    if finding.tensors:
        found["tensors"] = finding.tensors
    if finding.is_about_what_ran:
        found[IN_EFFECT] = True
    return found


def _finding_columns(source: str, audited: ArtifactFindings) -> dict[str, Any]:
    findings = audited.findings
    return {
        "source": [source] * len(findings),
        "candidate": [audited.candidate] * len(findings),
        "ordinal": list(range(len(findings))),
        **_attributes(findings, "id", "severity", "message", "action"),
        "layers": [list(finding.layers) or None for finding in findings],
        "evidence": [
            json.dumps(to_jsonable_python(_evidence(finding), inf_nan_mode="strings"), ensure_ascii=False)
            for finding in findings
        ],
    }


def _attributes(things: Sequence[Any], *names: str) -> dict[str, list[Any]]:
    """Return the columns that are called as what they are made of."""
    return {name: [getattr(thing, name) for thing in things] for name in names}
