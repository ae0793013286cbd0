"""The table that `kvtrace serving` writes: a header line with the runs, then one JSON object a request."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from kvtrace.errors import OutcomesError
from kvtrace.outcomes.fields import flag, shown, table, text, text_or_none, whole, whole_or_none
from kvtrace.outcomes.strict_files import json_lines, located
from kvtrace.plain_text import plain
from kvtrace.runs.manifest import ServingManifest
from kvtrace.serving.record import LOADS, MAX_RUNS, PHASES, PLANNED_SOURCES, STAMPS, STATUSES, LoadRun, Served
from kvtrace.serving.scrapes import MAX_SCRAPES, Scrape, scrape_of_record
from kvtrace.serving.times import amount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLE_VERSION: Final = "1.1"
_MOST_US: Final = 2**53
_TIMES: Final = ("planned_us", "dispatched_us", "first_us", "last_us", "done_us")
_DURATIONS: Final = ("engine_queue_us", "engine_first_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(LoadRun):
    """One run of a table."""

    variant: str
    repetition: int
    """The number of this run among its variant's, from 0."""
    file: str
    sha256: str
    """Of the file."""
    rows: int
    num_joined: int
    """Requests whose answer was judged elsewhere."""
    statuses: dict[str, int] = field(default_factory=dict)
    first_planned_us: int | None = None
    """Of measured requests; so is the last."""
    last_planned_us: int | None = None


@dataclass(frozen=True, slots=True)
class ServingTable:
    """A table: its header; rows are read as they are asked for."""

    path: Path
    runs: tuple[RunRecord, ...]
    manifests: dict[str, ServingManifest]
    """By variant; what nobody supplied is absent."""
    scrapes: dict[str, tuple[Scrape, ...]]
    """By variant, in the order of the files."""

    @property
    def variants(self) -> list[str]:
        """Return the names of all variants, last those that a manifest says cannot be served."""
        unserved = [name for name, one in self.manifests.items() if one.unsupported is not None]
        return list(dict.fromkeys([*(run.variant for run in self.runs), *unserved]))

    def each_run(self) -> Iterator[tuple[RunRecord, Iterator[Served]]]:
        """Yield each run with its requests, to be read before the next.

        Raises OutcomesError: a row is not what it should be, or the table was cut or changed.
        """
        lines = json_lines(self.path)
        next(lines)
        for place, run in enumerate(self.runs):
            rows = self._rows(lines, place, run)
            yield run, rows
            for _ in rows:
                pass
        for number, _ in lines:
            raise OutcomesError(f"{self.path}: line {number}: is beyond what the header says; it was changed")

    def _rows(
        self, lines: Iterator[tuple[int, dict[str, Any]]], place: int, run: RunRecord
    ) -> Iterator[Served]:
        num = 0
        for number, record in islice(lines, run.rows):
            with located(self.path, f"line {number}"):
                if whole(record, "run") != place:
                    raise ValueError(f"run is {shown(record['run'])}, expected {place}")
                served = _served(record)
            num += 1
            yield served
        if num != run.rows:
            raise OutcomesError(
                f"{self.path}: has fewer requests than its header says: it was cut or changed"
            )


def read_serving(path: Path) -> ServingTable:
    """Return a table. Raises OutcomesError: the file is none, or its header is not what it should be."""
    number, header = next(json_lines(path), (0, {}))
    with located(path):
        if "kvtrace_serving" not in header or number != 1:
            raise ValueError(
                "cannot be read as a table of served requests; make one with "
                "kvtrace serving VARIANT=FILE -o TABLE"
            )
        version = text(header, "kvtrace_serving", most=20)
        if version.partition(".")[0] != TABLE_VERSION.partition(".")[0]:
            raise ValueError(f"is a table of version {shown(version)}, expected {TABLE_VERSION}")
        runs = header.get("runs")
        if not isinstance(runs, list) or not 0 < len(runs) <= MAX_RUNS:
            raise ValueError(f"runs is expected to be a list of 1 to {MAX_RUNS:,}")
        return ServingTable(
            path,
            tuple(_run(one) for one in runs),
            {name: _manifest(table(header["manifests"], name)) for name in table(header, "manifests")},
            {name: _scrapes(header["scrapes"][name]) for name in table(header, "scrapes")},
        )


def _run(record: object) -> RunRecord:
    if not isinstance(record, dict):
        raise ValueError("runs is expected to hold objects")
    unknown = record.keys() - {one.name for one in fields(RunRecord)}
    if unknown:
        raise ValueError(f"a run has {shown(min(unknown))}, which no run has")
    statuses = table(record, "statuses")
    return RunRecord(
        name=text(record, "name", most=600),
        format=text(record, "format", most=40),
        load=_one_of(record, "load", LOADS),
        planned_source=None
        if record.get("planned_source") is None
        else _one_of(record, "planned_source", PLANNED_SOURCES),
        stamps=_one_of(record, "stamps", STAMPS),
        has_ids=flag(record, "has_ids"),
        rate=amount(record, "rate"),
        max_concurrency=whole_or_none(record, "max_concurrency"),
        duration_us=whole_or_none(record, "duration_us"),
        tool_goodput=amount(record, "tool_goodput"),
        tool_version=text_or_none(record, "tool_version", most=40),
        refused=text_or_none(record, "refused", most=1000),
        variant=text(record, "variant", most=64),
        repetition=whole(record, "repetition"),
        file=text(record, "file", most=1000),
        sha256=text(record, "sha256", most=64),
        rows=whole(record, "rows"),
        num_joined=whole(record, "num_joined"),
        statuses={name: whole(statuses, name) for name in statuses},
        first_planned_us=_time(record, "first_planned_us"),
        last_planned_us=_time(record, "last_planned_us"),
    )


def _manifest(record: dict[str, Any]) -> ServingManifest:
    try:
        return ServingManifest.model_validate(record)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(
            f"manifest: {plain(str(first['loc'][0]), 80)}: {plain(first['msg'], 200)}"
        ) from error


def _scrapes(records: object) -> tuple[Scrape, ...]:
    if not isinstance(records, list) or len(records) > MAX_SCRAPES:
        raise ValueError(f"scrapes is expected to hold lists of at most {MAX_SCRAPES:,}")
    return tuple(scrape_of_record(one) for one in records)


def _served(record: dict[str, Any]) -> Served:
    return Served(
        id=text(record, "id", most=600),
        status=_one_of(record, "status", STATUSES),
        phase=_one_of(record, "phase", PHASES),
        workload=text_or_none(record, "workload", most=64),
        **{name: _time(record, name) for name in _TIMES},
        **{name: whole_or_none(record, name) for name in _DURATIONS},
        gaps_us=_gaps(record.get("gaps_us")),
        prompt_tokens=whole_or_none(record, "prompt_tokens"),
        output_tokens=whole_or_none(record, "output_tokens"),
        accepted=None if record.get("accepted") is None else flag(record, "accepted"),
        retries=whole(record, "retries"),
        cost=amount(record, "cost"),
    )


def _gaps(values: object) -> tuple[int, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(one) is int and 0 <= one <= _MOST_US for one in values):
        raise ValueError("gaps_us is expected to be a list of whole microseconds")
    return tuple(values)


def _one_of(record: dict[str, Any], key: str, known: tuple[Any, ...]) -> Any:
    value = record.get(key)
    if value not in known:
        raise ValueError(f"{key} is {shown(value)}, expected one of {', '.join(known)}")
    return value


def _time(record: dict[str, Any], key: str) -> int | None:
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MOST_US:
        raise ValueError(f"{key} is {shown(value)}, expected whole microseconds")
    return value
