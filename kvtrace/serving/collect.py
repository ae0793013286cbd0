"""Files of several load generators into one table of served requests, row by row."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any

from kvtrace.errors import InputError, OutcomesError
from kvtrace.files.regular import open_regular
from kvtrace.files.replaced import replacing
from kvtrace.outcomes.strict_files import located
from kvtrace.plain_text import plain
from kvtrace.serving.formats import read_served
from kvtrace.serving.record import MAX_RUNS, MAX_SERVED, LoadRun, Served
from kvtrace.serving.scrapes import MAX_SCRAPES, read_scrapes
from kvtrace.serving.table import TABLE_VERSION, RunRecord
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kvtrace.outcomes.table import OutcomeTable
    from kvtrace.runs.manifest import ServingManifest
    from kvtrace.serving.record import Load
    from kvtrace.serving.source import VariantFile

_Judged = dict[tuple[str, str, int], bool]


@dataclass(slots=True)
class Extras:
    """What stands beside the files."""

    load: Load | None = None
    """How load was offered, for files that do not say."""
    outcomes: OutcomeTable | None = None
    """Answers judged elsewhere."""
    metrics: Sequence[VariantFile] = ()
    manifests: Mapping[str, ServingManifest] = field(default_factory=dict)
    """By variant."""


def collect_serving(sources: Sequence[VariantFile], out: Path, extras: Extras) -> list[RunRecord]:
    """Write the table of all sources' requests to `out`, whole or not at all, and return its runs.

    No prompt and no answer is kept. Raises OutcomesError: a source cannot be read, an id is there twice in a
    run, or judged answers belong to no request. InputError: `out` cannot be written.
    """
    variants = {one.variant for one in sources}
    unserved = {name for name, one in extras.manifests.items() if one.unsupported is not None}
    if served := variants & unserved:
        raise OutcomesError(
            f"{plain(min(served))}: its manifest says that it cannot be served, and a file is of it"
        )
    for name in (*(one.variant for one in extras.metrics), *extras.manifests):
        if name not in variants | unserved:
            raise OutcomesError(f"{plain(name)}: no file is of this variant; there is {', '.join(variants)}")
    judged = {} if extras.outcomes is None else _judged(extras.outcomes)
    runs: list[RunRecord] = []
    with tempfile.TemporaryFile() as rows:
        for source in sources:
            _collect_file(source, extras.load, judged, rows, runs)
        if extras.outcomes is not None and not any(run.num_joined for run in runs):
            raise OutcomesError(
                f"{extras.outcomes.path}: none of its answers is of a request here; do variant, id and "
                "repetition (the number of the variant's run, from 0) agree?"
            )
        header = {
            "kvtrace_serving": TABLE_VERSION,
            "kvtrace_version": __version__,
            "runs": [asdict(run) for run in runs],
            "manifests": {name: one.given() for name, one in extras.manifests.items()},
            "scrapes": _scrapes(extras.metrics),
        }
        rows.seek(0)
        try:
            with replacing(out) as file:
                file.write(json.dumps(header, ensure_ascii=False).encode() + b"\n")
                shutil.copyfileobj(rows, file, 1 << 20)
        except OSError as error:
            raise InputError(f"{out}: cannot be written: {error.strerror or error}") from error
    return runs


def _judged(table: OutcomeTable) -> _Judged:
    judged: _Judged = {}
    for row in table.rows:
        key = (row.variant, row.id, row.repetition)
        if key in judged:
            raise OutcomesError(
                f"{table.path}: {plain(row.variant)} has several answers to id {plain(row.id)}; "
                "a served request has one"
            )
        if row.outcome != "unjudged":
            judged[key] = row.passed
    return judged


def _scrapes(sources: Sequence[VariantFile]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        of_variant = found.setdefault(source.variant, [])
        of_variant.extend(asdict(one) for one in read_scrapes(source.path))
        if sum(map(len, found.values())) > MAX_SCRAPES:
            raise OutcomesError(f"{source.path}: makes more than {MAX_SCRAPES:,} scrapes")
    return found


def _collect_file(
    source: VariantFile, load: Load | None, judged: _Judged, rows: IO[bytes], runs: list[RunRecord]
) -> None:
    digest = hashlib.sha256()
    with located(source.path), open_regular(source.path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    before = len(runs)
    pending: _Run | None = None
    for item in read_served(source.path):
        if isinstance(item, LoadRun):
            if pending is not None:
                runs.append(pending.finished())
            with located(source.path):
                pending = _Run(_with_load(item, load), source, digest.hexdigest(), runs, judged)
            continue
        assert pending is not None
        with located(source.path):
            if sum(run.rows for run in runs) + pending.num_rows >= MAX_SERVED:
                raise ValueError(f"makes more than {MAX_SERVED:,} requests")
            pending.add(item, rows)
    if pending is not None:
        runs.append(pending.finished())
    with located(source.path):
        if len(runs) == before:
            raise ValueError("holds no run")
        if len(runs) > MAX_RUNS:
            raise ValueError(f"makes more than {MAX_RUNS:,} runs")


def _with_load(run: LoadRun, load: Load | None) -> LoadRun:
    if load is None or run.load == load:
        return run
    if run.load != "unknown":
        raise ValueError(f"says that its load was {run.load}; leave out --load {load}")
    return replace(run, load=load)


class _Run:
    """A run while its rows are written."""

    def __init__(
        self, run: LoadRun, source: VariantFile, sha256: str, before: Sequence[RunRecord], judged: _Judged
    ) -> None:
        self.run, self.source, self.sha256 = run, source, sha256
        self.judged = judged
        self.repetition = sum(one.variant == source.variant for one in before)
        self.place = len(before)
        self.num_rows = self.num_joined = 0
        self.statuses = Counter[str]()
        self.seen: set[bytes] = set()
        self.planned: list[int] = []

    def add(self, row: Served, rows: IO[bytes]) -> None:
        """Write a row. Raises ValueError: its id is in the run twice, or it was judged twice."""
        key = hashlib.blake2b(row.id.encode(), digest_size=16).digest()
        if key in self.seen:
            raise ValueError(
                f"id {plain(row.id)} is in {plain(self.run.name)} twice; retries are one request"
            )
        self.seen.add(key)
        verdict = (
            self.judged.get((self.source.variant, row.id, self.repetition)) if self.run.has_ids else None
        )
        if verdict is not None:
            if row.accepted is not None and row.accepted != verdict:
                raise ValueError(f"id {plain(row.id)} was judged in the file and in the outcomes, otherwise")
            row = replace(row, accepted=verdict)
            self.num_joined += 1
        if row.phase == "measured" and row.planned_us is not None:
            self.planned = [
                min([*self.planned[:1], row.planned_us]),
                max([*self.planned[1:], row.planned_us]),
            ]
        self.num_rows += 1
        self.statuses[row.status] += 1
        record = {"run": self.place} | {
            name: value for name, value in asdict(row).items() if value is not None
        }
        rows.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    def finished(self) -> RunRecord:
        """Return what the header says of the run."""
        return RunRecord(
            variant=self.source.variant,
            repetition=self.repetition,
            file=self.source.path.name,
            sha256=self.sha256,
            rows=self.num_rows,
            num_joined=self.num_joined,
            statuses=dict(self.statuses),
            first_planned_us=self.planned[0] if self.planned else None,
            last_planned_us=self.planned[1] if self.planned else None,
            **asdict(self.run),
        )


def collected_text(runs: Sequence[RunRecord]) -> str:
    """Return a line for each run, and what it cannot give."""
    return "".join(f"{line}\n" for run in runs for line in _lines(run))


def _lines(run: RunRecord) -> Iterator[str]:
    counted = ", ".join(f"{number:,} {status}" for status, number in sorted(run.statuses.items()))
    load = {"unknown": "how load was offered is not said (--load)"}.get(run.load, f"{run.load} load")
    yield f"{plain(run.variant)} run {run.repetition}, {run.format}, {load}: {counted or 'no request'}"
    if run.refused is not None:
        yield f"  no goodput: {run.refused}"
    if run.planned_source == "dispatch":
        yield "  arrivals are taken from sending: how late the generator itself was is not recorded"
