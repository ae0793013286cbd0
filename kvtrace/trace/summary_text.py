"""`kvtrace inspect` for people: the summary of a trace on 80 columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kvtrace.byte_text import byte_text
from kvtrace.plain_text import plain
from kvtrace.trace.draft_summary import draft_lines
from kvtrace.trace.repair.text import loss_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.trace.cache_dtypes import CacheKind
    from kvtrace.trace.format import SamplingRecord
    from kvtrace.trace.summary import CoverageCell, LayerSummary, TraceSummary


_OCTAVES_A_BLOCK: Final = 6
_MOST_LAYERS: Final = 4
_NOT_COMMITTED: Final = "were not committed when the engine was killed (--shutdown-timeout 30 leaves it time)"
_DROPPED: Final = {
    "budget": "rows came after the byte budget was spent (a larger one, or a wider stride)",
    "queue_full": "rows found no room in the queue (a wider stride, or a faster disk)",
    "write_failed": "rows could not be written (the disk: full, or gone)",
    "hook_failed": "rows could not be copied out of the engine (its log says why)",
    "damaged": "rows were damaged, and a repair left them out",
}
"""Why rows are not there, and what helps."""
_MEANING: Final[dict[CacheKind, str]] = {
    "static_fp8": "",
    "unquantized": ": no FP8 in effect, so any scales are hypothetical",
    "other": ": quantized, but not static FP8",
}


def summary_text(summary: TraceSummary) -> str:
    """Return the summary as text of at most 80 columns, without colour."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: TraceSummary) -> Iterator[str]:
    model, engine = summary.model, summary.engine
    created = datetime.fromtimestamp(summary.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    yield f"{plain(summary.path, 60)}  captured {created}"
    yield ""
    yield f"model     {plain(model.name, 68)}"
    yield (
        f"          {model.dtype}, {model.num_layers} layers, {model.num_kv_heads} KV heads × "
        f"{model.head_dim}, up to {model.max_model_len:,} positions"
    )
    yield from _other_shapes(summary)
    yield f"          weights   {_digest(model.weights_digest)}"
    yield f"          tokenizer {_digest(model.tokenizer_digest)}"
    yield f"          template  {_digest(model.chat_template_digest)}"
    yield (
        f"engine    {plain(engine.name)} {plain(engine.version)} on {plain(engine.device, 30)}, "
        f"TP {engine.tensor_parallel_size}, block size {engine.block_size}"
    )
    if summary.platform is not None and summary.platform != engine.device:
        capability = engine.compute_capability
        more = f", compute capability {plain(capability, 10)}" if capability else ""
        yield f"          platform {plain(summary.platform, 20)}{more}"
    yield f"KV cache  {plain(engine.kv_cache_dtype)}{_MEANING[summary.cache_kind]}"
    yield from _scale_lines(summary.layers, summary.cache_kind)
    yield ""
    yield from _sampling_lines(summary.sampling)
    statuses = ", ".join(
        f"{count:,} {plain(s, 20)}" for s, count in sorted(summary.requests_by_status.items())
    )
    yield f"requests  {summary.num_requests:,}, {summary.num_sampled_requests:,} of them sampled ({statuses})"
    yield f"tokens    {summary.num_tokens:,} stored"
    yield from draft_lines(summary.drafts)
    yield from _query_lines(summary)
    yield ""
    yield from _coverage_lines(summary.coverage)
    yield ""
    yield from _completeness_lines(summary)
    yield from _integrity_lines(summary)


def _digest(digest: str | None) -> str:
    if digest is None:
        return "not recorded"
    algorithm, _, value = digest.rpartition(":")
    return f"{value[:16]}…  ({algorithm})"


def _other_shapes(summary: TraceSummary) -> Iterator[str]:
    """Say which captured layers have other KV heads than the model's record, which knows one shape."""
    shapes: dict[tuple[int, int | None], int] = {}
    for layer in summary.layers:
        shape = (len(layer.kv_heads), layer.head_dim)
        shapes[shape] = shapes.get(shape, 0) + 1
    if len(shapes) > 1:
        for (heads, head_dim), count in shapes.items():
            yield f"          {count} layers with {heads} KV heads × {head_dim}"


def _scale_lines(layers: tuple[LayerSummary, ...], kind: CacheKind) -> Iterator[str]:
    """Effective scales: one line where all are alike, else a line a layer."""
    for dtype in sorted({(layer.kv_cache_dtype, layer.backend) for layer in layers}):
        count = sum((layer.kv_cache_dtype, layer.backend) == dtype for layer in layers)
        yield f"          {count} layers on {plain(dtype[1], 30)} with cache dtype {plain(dtype[0], 20)}"
    if kind == "other":
        yield "scales    it has not those of static FP8, so any given ones are hypothetical"
        return
    distinct = {scale for layer in layers for scale in (*layer.k_scale, *layer.v_scale)}
    if len(distinct) == 1:
        yield f"scales    every effective K and V scale is {distinct.pop():g}"
        return
    yield "scales    effective, as the engine held them; per KV head where they differ"
    yield "          layer  K scale                         V scale"
    for layer in layers:
        yield f"          {layer.layer:>5}  {_scales(layer.k_scale):<30}  {_scales(layer.v_scale)}"


def _scales(values: tuple[float, ...]) -> str:
    distinct = values[:1] if len(set(values)) == 1 else values
    text = " ".join(f"{value:.4g}" for value in distinct)
    return text if len(text) <= 30 else f"{min(values):.4g} … {max(values):.4g} ({len(values)} heads)"


def _sampling_lines(rules: tuple[SamplingRecord, ...]) -> Iterator[str]:
    for rule in rules:
        first, *more = sampling_text(rule).split("\n")
        yield f"sampling  #{rule.sampling_id}: {first}"
        for line in more:
            yield f"          {line}"


def sampling_text(rule: SamplingRecord) -> str:
    """Return sampling rules in words, on one line, or on two of 70 columns."""
    if not rule.request_fraction:
        return "switched off"
    layers = "all layers" if rule.layers is None else f"{len(rule.layers)} layers"
    workloads = "all workloads" if rule.workloads is None else ", ".join(plain(w, 20) for w in rule.workloads)
    budget = "" if rule.byte_budget is None else f", at most {rule.byte_budget / 1e6:,.0f} MB a rank"
    requests = f"{rule.request_fraction * 100:g}% of requests"
    return f"1 in {rule.position_stride} positions of {requests}, {layers},\n{workloads}{budget}"


def _query_lines(summary: TraceSummary) -> Iterator[str]:
    queries = summary.queries
    if queries is None:
        return
    outputs = ", each with the engine's attention output" if queries.has_outputs else ""
    where = f"{queries.num_requests:,} requests in {queries.num_layers} layers"
    yield f"queries   {queries.num_queries:,} of {where}{outputs}"
    yield f"          K and V of {queries.num_context_rows:,} more tokens are kept for attention alone"
    if queries.num_dropped:
        reasons = ", ".join(f"{plain(r, 20)} {n:,}" for r, n in sorted(queries.dropped_by_reason.items()))
        yield f"          {queries.num_dropped:,} rows of them were dropped ({reasons})"
    for layer, missing in list(queries.not_replayable.items())[:_MOST_LAYERS]:
        names = ", ".join(plain(name, 20) for name in missing[:_MOST_LAYERS])
        yield f"          layer {layer} cannot be replayed: {names} is not recorded"


def _coverage_lines(cells: tuple[CoverageCell, ...]) -> Iterator[str]:
    """A row per workload × phase, a column per octave, some columns at a time."""
    yield "coverage  tokens/requests by position; blank: nothing was captured there"
    octaves = sorted({cell.position_octave for cell in cells})
    found = {(cell.workload, cell.phase, cell.position_octave): cell for cell in cells}
    for start in range(0, len(octaves), _OCTAVES_A_BLOCK):
        columns = octaves[start : start + _OCTAVES_A_BLOCK]
        yield " " * 23 + "".join(f"{_first_position(octave):>9}" for octave in columns)
        for workload, phase in sorted({(cell.workload, cell.phase) for cell in cells}, key=_row_order):
            row = [found.get((workload, phase, octave)) for octave in columns]
            if any(row):
                counts = "".join(f"{_counts(cell):>9}" for cell in row)
                yield f"  {plain(workload, 12):<12} {phase:<7} {counts}".rstrip()


def _row_order(row: tuple[str, str]) -> tuple[str, bool]:
    return row[0], row[1] == "decode"


def _first_position(octave: int) -> str:
    return f"≥ {1 << octave:,}" if octave else "0–1"


def _counts(cell: CoverageCell | None) -> str:
    return "" if cell is None else f"{cell.num_tokens}/{cell.num_requests}"


def _completeness_lines(summary: TraceSummary) -> Iterator[str]:
    found = summary.completeness
    lost = found.num_expected - found.num_stored
    yield (
        f"complete  {found.num_stored:,} of {found.num_expected:,} sampled positions of finished requests"
        + (" are stored" if lost <= 0 else f" are stored, {lost:,} are not")
    )
    dropped = [(count, _DROPPED[reason]) for reason, count in sorted(found.dropped_by_reason.items())]
    notes = [
        (found.num_pending, "rows wait for the next commit of the engine, which still runs"),
        (found.num_uncommitted, f"rows {_NOT_COMMITTED}"),
        *dropped,
        (
            found.num_missing_positions - found.num_switched_off_positions,
            "positions never computed here (prefix cache)",
        ),
        (found.num_switched_off_positions, "positions computed while capture was switched off"),
        (found.num_requests_with_missing, "requests captured only in part, for these reasons"),
        (found.num_unfinished_requests, "sampled requests without an end record"),
        (found.num_superseded, "rows superseded by a later write of the same position"),
        (found.num_unknown_request, "rows whose request has no record; not used"),
        (found.num_beyond_end, "rows beyond the end of their request; not used"),
        (found.num_rejected, "rows of drafts that were rejected, or may be; not used"),
    ]
    for count, text in notes:
        if count:
            yield f"          {count:,} {text}"


def _how_it_ended(summary: TraceSummary) -> str:
    if summary.closed:
        return "closed in order"
    if summary.running:
        return "the engine still runs: more rows may come"
    return "not closed in order: the last rows may be lost"


def _integrity_lines(summary: TraceSummary) -> Iterator[str]:
    how = (
        "every tensor reread and sound"
        if summary.reread
        else "every chunk is there; tensors not reread (--verify does that)"
    )
    yield f"integrity {how}"
    yield (
        f"          {summary.num_ranks} rank(s), {summary.num_chunks} row chunk(s), " + _how_it_ended(summary)
    )
    for directory, where in summary.profiles.items():
        hint = "" if where == "made here" else ": a replay counts again"
        yield f"          {directory}, {where}, was counted again and is the same{hint}"
    if summary.committed_at is not None and not summary.closed:
        last = datetime.fromtimestamp(summary.committed_at, UTC)
        yield f"          last commit {last:%Y-%m-%d %H:%M:%S UTC}"
    for failure in summary.writer_failures:
        yield f"          a writer stopped storing: {plain(failure, 200)}"
    if summary.num_lost_lines:
        yield f"          {summary.num_lost_lines:,} records of requests could not be written"
    if summary.repair:
        yield f"repaired  from the trace with digest {summary.repair.from_digest[:16]}…; lost:"
        yield from (f"          {line}" for line in loss_lines(summary.repair))
    yield f"          digest {summary.digest[:16]}…"
    cost = summary.cost
    if cost.get("raw_bytes"):
        copies = f" ({cost['copy_s']:.2f} s of it copies)" if "copy_s" in cost else ""
        yield f"cost      {byte_text(cost['raw_bytes'])} of K and V in {byte_text(cost['stored_bytes'])}"
        yield f"          hook {cost['hook_s']:.2f} s{copies}, write {cost['write_s']:.2f} s"
