"""kvtrace in a notebook: open a trace, replay it, ask it with SQL, look at the report.

>>> import kvtrace
>>> trace = kvtrace.open_trace("samples/smollm2-135m.kvtrace")
>>> run = kvtrace.replay(trace, scales=["samples/scales/chat-per-head"])
>>> run.sql("SELECT count(*) AS num_tokens FROM rows")["num_tokens"].item()
1658
>>> worst = run.query("rank_heads", candidate="chat-per-head", tensor="v", top=1)
>>> worst.select("layer", "kv_head", "num_clipped").row(0)
(14, 1, 768)
>>> str(run.report()).startswith("kvtrace report · smollm2-135m")
True

`kvtrace.open_trace`, `kvtrace.open_run` and `kvtrace.replay` are the functions below, imported at first use.
"""

from __future__ import annotations

import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from kvtrace.trace.reader import Trace, open_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from kvtrace.candidates import ServingSetup
    from kvtrace.report.sections import Report
    from kvtrace.runs.record import RunRecord

    Scales = Path | str

__all__ = ["NotebookReport", "NotebookRun", "open_run", "open_trace", "replay"]


def replay(
    traces: Trace | Sequence[Trace],
    scales: Scales | Sequence[Scales] = (),
    *,
    setup: ServingSetup | None = None,
    cache_dtypes: Sequence[str] = (),
    against: Path | str | None = None,
    device: str | None = None,
    intervals: bool = False,
    out: Path | str | None = None,
) -> NotebookRun:
    """Replay traces through FP8 under bf16, the effective scales (if any), 1.0 and each artifact.

    scales: checkpoints or scale files, one or several. setup: engine, format, backend, TP and skipped layers;
    None: the captured engine's if its cache was static FP8, else vLLM on CUDA. cache_dtypes: formats to
    compare, such as nvfp4 or k=bf16,v=fp8 (`kvtrace.formats.parse_format`). against: a checkpoint that those
    of `scales` are compared with, as `kvtrace report --against` does. device: cpu, cuda or cuda:N; None: CUDA
    if there is one. intervals: sum by group of requests too, as `kvtrace replay --intervals` does. out: where
    the run is kept; None: a temporary directory, gone with the returned object.
    What a user should know of how it went is logged under `kvtrace`; Python shows warnings on stderr.
    Raises the errors of `kvtrace.errors`: ArtifactError, NoValidCandidateError, IntegrityError, InputError
    where no trace is given, …
    """
    from kvtrace.evaluation import replay as replay_request
    from kvtrace.evaluation import standard_request

    request = standard_request(
        [traces] if isinstance(traces, Trace) else list(traces),
        [scales] if isinstance(scales, Path | str) else scales,
        setup,
        cache_dtypes=cache_dtypes,
        against=None if against is None else Path(against),
    )
    request = replace(request, device=device, intervals=intervals)
    if out is not None:
        return NotebookRun(replay_request(request, out))
    scratch = Path(mkdtemp(prefix="kvtrace-"))
    try:
        run = NotebookRun(replay_request(request, scratch / "run"), kept=False)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    weakref.finalize(run, shutil.rmtree, scratch, ignore_errors=True)
    return run


def open_run(path: Path | str) -> NotebookRun:
    """Open a run that `kvtrace replay` wrote. Raises NotATraceError, SchemaVersionError or IntegrityError."""
    return NotebookRun(Path(path))


class NotebookRun:
    """A finished run, to ask."""

    def __init__(self, path: Path, *, kept: bool = True) -> None:
        from kvtrace.query import connect_with_views
        from kvtrace.runs.open import open_run

        self._run = open_run(path)
        self._connection = connect_with_views(self._run)
        self._kept = kept

    @property
    def path(self) -> Path:
        """Return the run's directory."""
        return self._run.path

    @property
    def record(self) -> RunRecord:
        """Return `run.json`: sources, versions, device."""
        return self._run.record

    def sql(self, sql: str, **parameters: object) -> pl.DataFrame:
        """Return the rows of one SELECT over the views and measures of `queries/`.

        parameters: values of `getvariable('name')` in the SQL.
        Raises QueryError: it is not one SELECT, reaches beyond the run, or is wrong.
        """
        from kvtrace.query import run_sql

        return _frame(run_sql(self._connection, sql, _as_text(parameters)))

    def query(self, name: str, **parameters: object) -> pl.DataFrame:
        """Return the rows of a query of the library. Raises QueryError: no such query or parameter."""
        from kvtrace.query import find_query, run_query

        return _frame(run_query(self._connection, find_query(name), _as_text(parameters)))

    def report(self, *, top: int = 5) -> NotebookReport:
        """Return the report: a notebook shows its HTML, `print` its text. top: heads a candidate, K or V."""
        from kvtrace.report.build import build_report

        return NotebookReport(self, build_report(self._run, top=top, run_kept=self._kept))

    def __repr__(self) -> str:
        return f"<kvtrace run {self.path}>"


class NotebookReport:
    """A report, as text, JSON or HTML."""

    def __init__(self, run: NotebookRun, report: Report) -> None:
        self._run = run
        self._report = report

    def __str__(self) -> str:
        from kvtrace.report.terminal.text import report_text

        return report_text(self._report)

    def json(self) -> str:
        """Return the report as JSON (docs/report.schema.json)."""
        from kvtrace.report.json import report_json

        return report_json(self._report)

    def html(self) -> str:
        """Return the report as one HTML page that needs no network."""
        from kvtrace.report.html.render import report_html

        return report_html(self._report, self._run._run)

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, so that its styles stay out of the notebook's."""
        from html import escape

        return (
            f'<iframe srcdoc="{escape(self.html(), quote=True)}" title="kvtrace report" '
            'sandbox="allow-scripts" style="width: 100%; height: 80vh; border: 0"></iframe>'
        )


def _as_text(parameters: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items()}


def _frame(result: Any) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(result.rows, schema=list(result.columns), orient="row", infer_schema_length=None)
