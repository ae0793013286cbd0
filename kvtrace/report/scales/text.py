"""The scales report as people read it: findings first, then one line per layer and tensor."""

from __future__ import annotations

from textwrap import TextWrapper
from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.scales.modules import TITLES
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
_HEAD: Final = TextWrapper(width=80, initial_indent="  ", subsequent_indent="    ")
_KEEPS: Final = {
    "state": ("keeps a state and no KV cache", "keep a state and no KV cache"),
    "shared cache": ("reads the cache of an earlier layer", "read the cache of an earlier layer"),
    "unquantized cache": ("keeps the model's dtype", "keep the model's dtype"),
}
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
    if artifact.number_format not in (None, "fp8"):
        yield f"  number format {artifact.number_format}"
    yield from _layers_and_modules(report)
    backend = f", backend {plain(engine.backend)}" if engine.backend else ""
    yield (
        f"  as {engine.engine} would apply it: tensor parallel {engine.tp}{backend}, per {engine.granularity}"
    )
    for remark in engine.remarks:
        yield from _HEAD.wrap(plain(remark, 300))
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


def _layers_and_modules(report: ScalesReport) -> Iterator[str]:
    """Say which layers are no plain ones, and what scales are not the language model's."""
    for keeps, (one, several) in _KEEPS.items():
        layers = [found.layer for found in report.layers if found.keeps == keeps]
        if layers:
            yield from _HEAD.wrap(f"{layer_ranges(layers)} {one if len(layers) == 1 else several}")
    for module in report.other_modules:
        shown = f"{module.min_scale:.4g}"
        if module.max_scale != module.min_scale:
            shown += f" to {module.max_scale:.4g}"
        yield from _HEAD.wrap(
            f"{module.num_scales} scales ({shown}) under {plain(module.prefix, 80)} belong to "
            f"{TITLES[module.kind]}"
        )


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
    queries = {row.layer: row for row in report.q_scales}
    last = set({layer: (layer, tensor) for layer, tensor in rows}.values())
    for (layer, tensor), heads in rows.items():
        cells = "".join(f"{_cell(heads, field):>{_WIDTH}}" for _, field in _COLUMNS)
        yield f"{layer:>5} {tensor.upper()}  {cells}"
        if (layer, tensor) in last and (query := queries.get(layer)):
            engine = "-" if query.engine_scale is None else f"{query.engine_scale:.4g}"
            yield f"{layer:>5} Q  {query.shipped_scale:>{_WIDTH}.4g}{engine:>{_WIDTH}}"
    yield ""
    yield "Scales: shipped; engine, what it would use; effective, what the traced engine"
    yield f"used; optimal, of least squared error. covered: {_covered(report)}. observed: largest"
    yield "magnitude in the trace. …: heads differ; the largest is shown, but of covered"
    yield "and observed the head with the least headroom. -: not there, or not measured."


def _covered(report: ScalesReport) -> str:
    is_int8 = (report.artifact.number_format or "").startswith("int8")
    return "127 × shipped" if is_int8 else "448 × engine"


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
