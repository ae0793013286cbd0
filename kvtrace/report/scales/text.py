"""The scales report as people read it: findings first, then one line per layer and tensor."""

from __future__ import annotations

from textwrap import TextWrapper
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.scales.resolve import layer_ranges
from kvtrace.trace.cache_dtypes import quantized_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.scales.model import AuditedFinding, ScaleRow, ScalesReport

_COLUMNS: Final = (
    ("shipped", "shipped_scale"),
    ("engine", "engine_scale"),
    ("effective", "effective_scale"),
    ("covered", "covered_amax"),
    ("observed", "observed_amax"),
    ("optimal", "optimal_scale"),
)
_WIDTH: Final = 11
_WRAPPED: Final = TextWrapper(width=80, initial_indent=" " * 8, subsequent_indent=" " * 8)


def scales_text(report: ScalesReport) -> str:
    """Return the report in at most 80 columns, apart from paths and messages."""
    lines = [*_head(report), "", *_findings(report), "", *_table(report)]
    return "\n".join(lines) + "\n"


def _head(report: ScalesReport) -> Iterator[str]:
    artifact, engine = report.artifact, report.engine
    yield f"{plain(artifact.path, 300)}"
    yield (
        f"  format {artifact.format}, one scale per {artifact.granularity}, "
        f"{artifact.num_layers_with_scales} layers, sha256 {artifact.sha256[:16]}"
    )
    backend = f", backend {plain(engine.backend)}" if engine.backend else ""
    yield (
        f"  as {engine.engine} would apply it: tensor parallel {engine.tp}{backend}, per {engine.granularity}"
    )
    if artifact.envelope:
        rows = artifact.envelope
        workloads = ", ".join(plain(w) for w in sorted({cell["workload"] for cell in rows["cells"]}))
        yield (
            f"  calibrated on {rows['num_requests']:,} requests, {rows['num_tokens']:,} tokens, positions up "
            f"to {rows['max_position']:,}: {workloads}"
        )
    if report.trace is None:
        yield "  no trace given: whether ranges fit and scales were loaded cannot be told"
    else:
        yield (
            f"  against {plain(report.trace.path, 300)}: {report.trace.num_tokens:,} tokens, positions up to "
            f"{report.trace.max_position:,}"
        )
        if report.trace.cache_kind == "other":
            names = plain(quantized_names(report.trace.cache_dtypes), 60)
            yield f"  its cache was {names}, which is not static FP8"


def _findings(report: ScalesReport) -> Iterator[str]:
    if not report.findings:
        yield "No findings."
    for finding in report.findings:
        yield f"{finding.severity.upper():<8}{finding.id}{_layers(finding)}"
        yield from _WRAPPED.wrap(plain(finding.message, 600))
        yield from _WRAPPED.wrap(f"→ {finding.action}")


def _layers(finding: AuditedFinding) -> str:
    return f" ({layer_ranges(finding.layers)})" if finding.layers else ""


def _table(report: ScalesReport) -> Iterator[str]:
    """One line per layer and tensor; of a column whose heads differ one is shown, marked with `…`.

    Of covered and observed that is the head with the least headroom, so that the two can be compared.
    """
    yield "layer    " + "".join(f"{name:>{_WIDTH}}" for name, _ in _COLUMNS)
    rows: dict[tuple[int, str], list[ScaleRow]] = {}
    for row in report.scales:
        rows.setdefault((row.layer, row.tensor), []).append(row)
    for (layer, tensor), heads in rows.items():
        cells = "".join(f"{_cell(heads, field):>{_WIDTH}}" for _, field in _COLUMNS)
        yield f"{layer:>5} {tensor.upper()}  {cells}"
    yield ""
    yield "Scales: shipped; engine, what it would use; effective, what the traced engine"
    yield "used; optimal, of least squared error. covered: 448 × engine. observed: largest"
    yield "magnitude in the trace. …: heads differ; the largest is shown, but of covered"
    yield "and observed the head with the least headroom. -: not there, or not measured."


def _cell(heads: list[ScaleRow], field: str) -> str:
    values = [getattr(row, field) for row in heads]
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    compared = [row for row in heads if row.covered_amax and row.observed_amax is not None]
    if compared and field in ("covered_amax", "observed_amax"):
        shown = getattr(max(compared, key=_use), field)
    else:
        shown = max(known)
    return f"{shown:.4g}" + ("…" if len(set(values)) > 1 else "")


def _use(row: ScaleRow) -> float:
    """Return the share of what is covered that was observed; above 1 values are out of range."""
    assert row.covered_amax is not None, "the caller chose rows with both"
    assert row.observed_amax is not None, "the caller chose rows with both"
    return row.observed_amax / row.covered_amax
