"""From a run to what a report says, by the queries of `queries/` alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kvtrace.figures import positions
from kvtrace.findings.diagnose import diagnose_case, losses_under, verdict_about
from kvtrace.findings.run.case import Case
from kvtrace.not_visible import BEYOND_ATTENTION, NOT_VISIBLE
from kvtrace.plain_text import plain
from kvtrace.query import connect_with_views, find_query, run_query
from kvtrace.report.answer.make import make_answer
from kvtrace.report.answer.told import Told
from kvtrace.report.cache_bytes import bytes_per_token
from kvtrace.report.harm.build import build_harm, with_strata
from kvtrace.report.sections import (
    REPORT_SCHEMA_VERSION,
    CandidateSummary,
    Captured,
    Head,
    Intervals,
    LoadedScales,
    Measured,
    Place,
    Report,
    SamplingRules,
    Source,
    Stratum,
    TensorTotals,
)
from kvtrace.report.shown import all_candidates, chosen_candidates, with_the_best

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvtrace.findings.finding import Head as HeadKey
    from kvtrace.runs.open import Run
    from kvtrace.runs.record import SourceRecord

Row = dict[str, Any]
_Part = TypeVar("_Part")
DEFAULT_TOP: Final = 5
_DETAILS: Final = "SELECT candidate, artifact, artifact_sha256, note, rounding_floor_db FROM candidates"
_SAMPLING: Final = (
    "SELECT source, sampling_id, position_stride, request_fraction FROM sampling "
    "WHERE request_fraction > 0 ORDER BY ALL"  # 0: capture was switched off
)


def build_report(
    run: Run,
    *,
    top: int = DEFAULT_TOP,
    run_kept: bool = True,
    candidates: Sequence[str] = (),
    budget: int | None = None,
) -> Report:
    """Return what the run says.

    top: heads per candidate, tensor and ranking. run_kept: whether the run outlives the report. candidates:
    those to tell of head by head, beside the answer's; empty: all of a few, the best of many. budget: bytes
    for the cache, of which each candidate holds so many tokens.
    Raises IntegrityError: a file of the run is damaged. InputError: the run has no such candidate.
    """
    case = Case(run)
    known = all_candidates(case)
    shown = chosen_candidates(run.path, known, candidates)
    with ThreadPoolExecutor(1, "kvtrace-diagnose") as beside:
        # On a connection of its own: its rules reckon in Python while DuckDB answers here.
        ask = _Asking(case.connection_beside())
        diagnosing = beside.submit(diagnose_case, case)
        compared = _compared(ask, budget)
        harm = build_harm(ask.rows, {one.candidate: one.bytes_per_token for one in compared["candidates"]})
        if len(shown) == len(known):
            details = _details(ask, top)
            diagnosis = diagnosing.result()
        else:
            diagnosis = diagnosing.result()
            shown = with_the_best(known, shown, Told(case, diagnosis, harm))
            details = _details(_Asking(connect_with_views(run, candidates=shown)), top)
    told = Told(case, diagnosis, harm)
    answer = make_answer(told, details.places, run_kept=run_kept)
    return Report(
        schema_version=REPORT_SCHEMA_VERSION,
        run=str(run.path) if run_kept else None,
        created_at=run.record.created_at,
        kvtrace_version=run.record.kvtrace_version,
        answer=answer,
        device=run.record.device,
        sources=tuple(_source(source) for source in run.record.sources),
        shown=shown,
        top=top,
        **compared,
        **details.fields,
        not_visible=BEYOND_ATTENTION if harm else NOT_VISIBLE,
        verdict=verdict_about(case, diagnosis, told.subject),
        findings=diagnosis.findings,
        losses=losses_under(case, answer.candidate) if answer.candidate else (),
        losses_under=answer.candidate,
        budget_bytes=budget,
        harm=with_strata(harm, ask.rows, answer.candidate) if harm else None,
    )


def _compared(ask: _Asking, budget: int | None) -> dict[str, tuple[Any, ...]]:
    """Return what is asked of all candidates, by the report's fields: a row for each, or for its K and V."""
    sizes = bytes_per_token(ask.connection)
    details = {
        row["candidate"]: row | _size(sizes.get(row["candidate"]), budget)
        for row in _records(ask.connection, _DETAILS)
    }
    return {
        "loaded": tuple(_loaded(ask.rows("scale_audit"))),
        "candidates": tuple(_candidates(ask.rows("compare_candidates"), details)),
        "sampling": tuple(_of(SamplingRules, row) for row in _records(ask.connection, _SAMPLING)),
        "captured": tuple(_of(Captured, row) for row in ask.rows("captured")),
    }


@dataclass(frozen=True, slots=True)
class _Details:
    """What is told of some candidates head by head."""

    fields: dict[str, tuple[Any, ...]]
    """By the report's fields."""
    places: dict[tuple[str, HeadKey], str]
    """(candidate, head) → where it clips most, in words; a head that clips nowhere is left out."""


def _details(ask: _Asking, top: int) -> _Details:
    located = {_key(row): row for row in ask.rows("locate_heads")}
    return _Details(
        fields={
            "heads": tuple(_heads(ask.rows("rank_heads", top=top), located)),
            "positions": tuple(map(_stratum, ask.rows("by_position"))),
            "workloads": tuple(map(_stratum, ask.rows("by_workload"))),
        },
        places={key: _most(row) for key, row in located.items() if row["position_clipped_frac"]},
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    """A connection that queries of the library are asked over."""

    connection: Any

    def rows(self, name: str, **parameters: object) -> list[Row]:
        """Return the rows of a query, as column → value."""
        given = {key: str(value) for key, value in parameters.items()}
        return list(run_query(self.connection, find_query(name), given).records())


def _size(num_bytes: int | None, budget: int | None) -> Row:
    tokens = budget // num_bytes if budget is not None and num_bytes else None
    return {"bytes_per_token": num_bytes, "tokens_in_budget": tokens}


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
        running=record.running,
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


_ENDS: Final[dict[str, Callable[..., float | None]]] = {
    "min_scale": min,
    "max_scale": max,
    "min_effective_scale": min,
    "max_effective_scale": max,
    "min_headroom": min,
}


def _loaded(audit: list[Row]) -> Iterable[LoadedScales]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in audit:
        groups.setdefault((row["source"], row["candidate"], row["tensor"]), []).append(row)
    for layers in groups.values():
        is_known = any(row["num_heads_as_effective"] is not None for row in layers)
        ends = {
            name: end((row[name] for row in layers if row[name] is not None), default=None)
            for name, end in _ENDS.items()
        }
        counted = {
            "num_layers": len(layers),
            "num_scales": sum(row["num_heads"] for row in layers),
            "num_as_effective": sum(map(_num_as_effective, layers)) if is_known else None,
        }
        yield _of(LoadedScales, layers[0] | counted | ends)


def _num_as_effective(layer: Row) -> int:
    """Return the heads of one layer that are as in the engine; all where neither quantizes it."""
    if layer["min_scale"] is None and layer["min_effective_scale"] is None:
        return int(layer["num_heads"])
    return layer["num_heads_as_effective"] or 0


def _candidates(compared: list[Row], details: dict[str, Row]) -> Iterable[CandidateSummary]:
    for name, group in groupby(compared, key=lambda row: row["candidate"]):
        rows = list(group)
        tensors = tuple(
            _of(TensorTotals, row | {"measured": _of(Measured, row)})
            for row in rows
            if row["tensor"] is not None
        )
        yield _of(CandidateSummary, rows[0] | details[name] | {"tensors": tensors})


def _key(row: Row) -> tuple[str, HeadKey]:
    return row["candidate"], (row["layer"], row["kv_head"], row["tensor"])


def _most(row: Row) -> str:
    where = positions(row["position_from"], row["position_to"])
    return f"most at positions {where} and in {plain(row['workload'], 40)}"


def _heads(ranked: Iterable[Row], located: dict[tuple[str, HeadKey], Row]) -> Iterable[Head]:
    for row in ranked:
        place = located.get(_key(row))
        where = {
            "worst_positions": place
            and _place(place, "position", positions(place["position_from"], place["position_to"])),
            "worst_workload": place and _place(place, "workload", place["workload"]),
        }
        yield _of(Head, row | where | {"measured": _of(Measured, row)})


def _place(row: Row, kind: str, name: str) -> Place:
    return Place(
        name=name,
        out_of_range_frac=row[f"{kind}_out_of_range_frac"],
        clipped_frac=row[f"{kind}_clipped_frac"],
        num_tokens=row[f"{kind}_num_tokens"],
    )


_IN_SOME_STRATA: Final = ("phase", "position_from", "position_to", "workload")


def _stratum(row: Row) -> Stratum:
    absent = dict.fromkeys((*_IN_SOME_STRATA, *(field.name for field in fields(Intervals))))
    known = absent | row
    return _of(Stratum, known | {"measured": _of(Measured, row), "intervals": _of(Intervals, known)})


def _of(part: type[_Part], row: Row) -> _Part:
    """Return a part of the report whose fields are the row's columns."""
    return part(**{field.name: row[field.name] for field in fields(part)})  # type: ignore[arg-type]
