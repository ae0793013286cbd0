"""From a run to what a report says, by the queries of `queries/` alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvtrace.figures import positions
from kvtrace.findings.diagnose import diagnose_case, losses_under
from kvtrace.findings.run.case import Case
from kvtrace.not_visible import NOT_VISIBLE
from kvtrace.plain_text import plain
from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.report.answer.make import make_answer
from kvtrace.report.intervals import intervals_of
from kvtrace.report.sections import (
    REPORT_SCHEMA_VERSION,
    CandidateSummary,
    Captured,
    Head,
    LoadedScales,
    Measured,
    Place,
    Report,
    SamplingRules,
    Source,
    Stratum,
    TensorTotals,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.findings.finding import Head as HeadKey
    from kvtrace.runs.open import Run
    from kvtrace.runs.record import SourceRecord

Row = dict[str, Any]
DEFAULT_TOP: Final = 5
_MEASURED: Final = tuple(field.name for field in fields(Measured))
_DETAILS: Final = "SELECT candidate, artifact, artifact_sha256, note, rounding_floor_db FROM candidates"
_SAMPLING: Final = (
    "SELECT source, sampling_id, position_stride, request_fraction FROM sampling "
    "WHERE request_fraction > 0 ORDER BY ALL"  # 0: capture was switched off
)
_HEAD_COUNTS: Final = (
    "num_heads",
    "num_heads_out_of_range",
    "num_heads_clipped",
    "worst_layer",
    "worst_kv_head",
    "worst_clipped_frac",
)
_CAPTURED: Final = tuple(field.name for field in fields(Captured))


def build_report(run: Run, *, top: int = DEFAULT_TOP, run_kept: bool = True) -> Report:
    """Return what the run says.

    top: heads per candidate, tensor and ranking. run_kept: whether the run outlives the report.
    Raises IntegrityError: a file of the run is damaged.
    """
    with ThreadPoolExecutor(1, "kvtrace-diagnose") as beside:
        # On a connection of its own: its rules reckon in Python while DuckDB answers here.
        case = Case(run)
        diagnosed = beside.submit(diagnose_case, case)
        answers = _Answers.of(run, top)
        diagnosis = diagnosed.result()
    answer = make_answer(case, diagnosis, answers.places)
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        run=str(run.path) if run_kept else None,
        created_at=run.record.created_at,
        kvtrace_version=run.record.kvtrace_version,
        answer=answer,
        device=run.record.device,
        sources=tuple(_source(source) for source in run.record.sources),
        loaded=answers.loaded,
        candidates=answers.candidates,
        top=top,
        heads=answers.heads,
        positions=answers.positions,
        workloads=answers.workloads,
        sampling=answers.sampling,
        captured=answers.captured,
        not_visible=NOT_VISIBLE,
        verdict=diagnosis.verdict,
        findings=diagnosis.findings,
        losses=losses_under(case, answer.candidate) if answer.candidate else (),
        losses_under=answer.candidate,
    )


class _Answers(NamedTuple):
    """What the queries say, in the report's own rows."""

    loaded: tuple[LoadedScales, ...]
    candidates: tuple[CandidateSummary, ...]
    heads: tuple[Head, ...]
    positions: tuple[Stratum, ...]
    workloads: tuple[Stratum, ...]
    sampling: tuple[SamplingRules, ...]
    captured: tuple[Captured, ...]
    places: dict[tuple[str, HeadKey], str]
    """(candidate, head) → the positions and the workload in which it clips most, in words."""

    @classmethod
    def of(cls, run: Run, top: int) -> _Answers:
        connection = connect_with_views(run)

        def rows(name: str, **parameters: object) -> list[Row]:
            given = {key: str(value) for key, value in parameters.items()}
            return list(run_query(connection, find_query(name), given).records())

        located = {_key(row): row for row in rows("locate_heads")}
        details = {row["candidate"]: row for row in _records(connection, _DETAILS)}
        return cls(
            loaded=tuple(_loaded(rows("scale_audit"))),
            candidates=tuple(_candidates(rows("compare_candidates"), details)),
            heads=tuple(_heads(rows("rank_heads", top=top), located)),
            positions=tuple(_stratum(row) for row in rows("by_position")),
            workloads=tuple(_stratum(row) for row in rows("by_workload")),
            sampling=tuple(SamplingRules(**row) for row in _records(connection, _SAMPLING)),
            places={
                (name, head): _most(row)
                for (name, head), row in located.items()
                if row["position_clipped_frac"]
            },
            captured=tuple(Captured(**{name: row[name] for name in _CAPTURED}) for row in rows("captured")),
        )


def _records(connection: Any, sql: str) -> list[Row]:
    cursor = connection.execute(sql)
    names = [entry[0] for entry in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _source(record: SourceRecord) -> Source:
    return Source(
        name=record.name,
        path=record.path,
        trace_sha256=record.trace_sha256,
        captured_at=record.created_at,
        closed=record.closed,
        model=record.model.name,
        weights_digest=record.model.weights_digest,
        engine=record.engine.name,
        engine_version=record.engine.version,
        device=record.engine.device,
        kv_cache_dtype=record.engine.kv_cache_dtype,
        attention_backends=record.attention_backends,
        has_fp8_cache=record.cache_kind == "static_fp8",
        cache_kind=record.cache_kind,
        cache_dtypes=record.cache_dtypes,
    )


def _loaded(audit: list[Row]) -> Iterable[LoadedScales]:
    def key(row: Row) -> tuple[str, str, str]:
        return row["source"], row["candidate"], row["tensor"]

    order = {found: number for number, found in enumerate(dict.fromkeys(map(key, audit)))}
    for (source, candidate, tensor), group in groupby(sorted(audit, key=lambda row: order[key(row)]), key):
        layers = list(group)
        is_known = any(row["num_heads_as_effective"] is not None for row in layers)
        yield LoadedScales(
            source=source,
            candidate=candidate,
            tensor=tensor,  # type: ignore[arg-type]  # k or v by the run's schema
            num_layers=len(layers),
            num_scales=sum(row["num_heads"] for row in layers),
            min_scale=_least(row["min_scale"] for row in layers),
            max_scale=_largest(row["max_scale"] for row in layers),
            min_effective_scale=_least(row["min_effective_scale"] for row in layers),
            max_effective_scale=_largest(row["max_effective_scale"] for row in layers),
            num_as_effective=sum(map(_num_as_effective, layers)) if is_known else None,
            min_headroom=_least(row["min_headroom"] for row in layers),
        )


def _num_as_effective(layer: Row) -> int:
    """Return the heads of one layer that are as in the engine; all where neither quantizes it."""
    if layer["min_scale"] is None and layer["min_effective_scale"] is None:
        return int(layer["num_heads"])
    return layer["num_heads_as_effective"] or 0


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _candidates(compared: list[Row], details: dict[str, Row]) -> Iterable[CandidateSummary]:
    for name, group in groupby(compared, key=lambda row: row["candidate"]):
        tensors = list(group)
        first = tensors[0]
        yield CandidateSummary(
            candidate=name,
            kind=first["kind"],
            status=first["status"],
            reason=first["reason"],
            hypothetical=first["hypothetical"],
            engine=first["engine"],
            format=first["format"],
            granularity=first["granularity"],
            artifact=details[name]["artifact"],
            artifact_sha256=details[name]["artifact_sha256"],
            note=details[name]["note"],
            rounding_floor_db=details[name]["rounding_floor_db"],
            tensors=tuple(_totals(row) for row in tensors if row["tensor"] is not None),
        )


def _totals(row: Row) -> TensorTotals:
    return TensorTotals(tensor=row["tensor"], measured=_measured(row), **_head_counts(row))


def _head_counts(row: Row) -> Row:
    return {name: row[name] for name in _HEAD_COUNTS}


def _measured(row: Row) -> Measured:
    return Measured(**{name: row[name] for name in _MEASURED})


def _key(row: Row) -> tuple[str, HeadKey]:
    return row["candidate"], (row["layer"], row["kv_head"], row["tensor"])


def _most(row: Row) -> str:
    where = positions(row["position_from"], row["position_to"])
    return f"most at positions {where} and in {plain(row['workload'], 40)}"


def _heads(ranked: Iterable[Row], located: dict[tuple[str, HeadKey], Row]) -> Iterable[Head]:
    for row in ranked:
        place = located.get(_key(row))
        yield Head(
            candidate=row["candidate"],
            tensor=row["tensor"],
            layer=row["layer"],
            kv_head=row["kv_head"],
            rank=row["rank"],
            vector_rank=row["vector_rank"],
            measured=_measured(row),
            max_abs=row["max_abs"],
            covered_amax=row["covered_amax"],
            worst_positions=_place(place, "position", positions(place["position_from"], place["position_to"]))
            if place
            else None,
            worst_workload=_place(place, "workload", place["workload"]) if place else None,
        )


def _place(row: Row, kind: str, name: str) -> Place:
    return Place(
        name=name,
        out_of_range_frac=row[f"{kind}_out_of_range_frac"],
        clipped_frac=row[f"{kind}_clipped_frac"],
        num_tokens=row[f"{kind}_num_tokens"],
    )


def _stratum(row: Row) -> Stratum:
    return Stratum(
        candidate=row["candidate"],
        tensor=row["tensor"],
        phase=row.get("phase"),
        position_from=row.get("position_from"),
        position_to=row.get("position_to"),
        workload=row.get("workload"),
        num_requests=row["num_requests"],
        num_tokens=row["num_tokens"],
        measured=_measured(row),
        intervals=intervals_of(row),
        **_head_counts(row),
    )
