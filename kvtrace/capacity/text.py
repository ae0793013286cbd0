"""The capacity report as people read it, within 100 columns."""

from __future__ import annotations

from textwrap import TextWrapper
from typing import TYPE_CHECKING, Final

from kvtrace.capacity.budget import GIB
from kvtrace.figures import count, percent
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.capacity.report import CapacityReport, EnginePart, FormatPart, RollbackPart

_WIDTH: Final = 100
_WRAPPED: Final = TextWrapper(width=_WIDTH, initial_indent="  ", subsequent_indent="    ")
_MEANS: Final = {
    "worst": "every request at full length",
    "planned": "each class at the length of its 95 %",
    "simulated": "10,000 draws from the trace",
}


def capacity_text(report: CapacityReport) -> str:
    """Return the report: the model, a line for each cache dtype, what to know, the way back."""
    lines = [*_head(report)]
    if report.formats:
        lines += ["", *_table(report)]
    for warning in report.warnings:
        lines += ["", *_WRAPPED.wrap(f"{plain(warning.label, 80)}: {plain(warning.text, 600)}")]
    if report.engine is not None:
        lines += ["", *_engine(report.engine)]
    if report.rollback is not None:
        lines += ["", *_rollback(report.rollback)]
    if report.assumptions:
        lines += ["", "Taken for lack of a word:"]
        for one in report.assumptions:
            lines += _WRAPPED.wrap(plain(one, 300))
    return "\n".join(lines) + "\n"


def gib(num_bytes: float) -> str:
    """Return bytes in GiB, or MiB below one.

    >>> gib(40 * GIB), gib(64 << 20)
    ('40 GiB', '64 MiB')
    """
    if num_bytes < GIB:
        return f"{num_bytes / (1 << 20):.4g} MiB"
    return f"{num_bytes / GIB:.4g} GiB"


def _head(report: CapacityReport) -> Iterator[str]:
    model, serving = report.model, report.serving
    if model is not None:
        kinds = (
            (model.num_full, "keep every token"),
            (model.num_windows, "keep a window"),
            (model.num_latent, "keep a latent"),
            (model.num_states, "keep a state"),
            (model.num_shared, "read another's cache"),
        )
        of_each = ", ".join(f"{number:,} {what}" for number, what in kinds if number)
        draft = f", {model.num_draft:,} of them draft layers" if model.num_draft else ""
        yield f"{plain(model.name, 200)}: {count(model.num_layers, 'layer')}, {of_each}{draft}; {model.dtype}"
    if serving is not None:
        rank = "one rank" if serving.tensor_parallel == 1 else f"one of {serving.tensor_parallel} ranks"
        yield f"  as vLLM 0.32 lays it out on {rank}, requests of {serving.max_model_len:,} tokens"
    if report.budget is not None:
        around = "" if report.budget.least == report.budget.most else " (two decimals of a GiB: ± 0.005)"
        if report.budget.source.endswith("its blocks"):
            around = ""
        yield f"  {gib(report.budget.num_bytes)} for the cache, {plain(report.budget.source, 200)}{around}"
    elif report.formats:
        yield "  no budget given: add --budget, --from-log or --from-metrics for blocks and tokens"


def _table(report: CapacityReport) -> Iterator[str]:
    width = max(len("cache dtype"), *(len(plain(one.label, 60)) for one in report.formats))
    yield (f"{'':<{width}} {'bytes a':>9} {'':>5} {'bytes a':>12} {'':>9} {'':>11} {'full':>9} {'tokens':>8}")
    yield (
        f"{'cache dtype':<{width}} {'token':>9} {'block':>5} {'block':>12} {'blocks':>9} {'tokens':>11} "
        f"{'requests':>9} {'× auto':>8}"
    )
    for one in report.formats:
        if one.reason is not None:
            yield from _WRAPPED.wrap(f"{plain(one.label, 60)}: not planned: {plain(one.reason, 400)}")
            continue
        yield f"{plain(one.label, 60):<{width}} {_numbers(one)}".rstrip()
    states = next((one.state_bytes for one in report.formats if one.state_bytes), None)
    if states:
        yield f"  and {states:,} bytes of state a request, whatever its length"
    for one in report.formats:
        if one.skip_layers and one.vllm_flags:
            yield from _WRAPPED.wrap(f"{plain(one.label, 60)} is vLLM's {one.vllm_flags}")
    kept = [one for one in report.formats if one.native_layers and not one.skip_layers and one.vllm_flags]
    for one in kept:
        layers = ", ".join(str(layer) for layer in one.native_layers)
        yield from _WRAPPED.wrap(
            f"{plain(one.label, 60)} leaves layers {layers} in {_dtype(report)} by itself"
        )


def _dtype(report: CapacityReport) -> str:
    return report.model.dtype if report.model else "the model's dtype"


def _numbers(one: FormatPart) -> str:
    cells = (
        (one.bytes_per_token, 9),
        (one.block_size, 5),
        (one.bytes_per_block, 12),
        (one.num_blocks, 9),
        (one.num_tokens, 11),
    )
    parts = [f"{'–' if value is None else format(value, ','):>{width}}" for value, width in cells]
    parts.append(f"{'–' if one.concurrency is None else format(one.concurrency, ',.2f'):>9}")
    parts.append(f"{'–' if one.times_auto_tokens is None else f'{one.times_auto_tokens:.2f} ×':>8}")
    return " ".join(parts)


def _engine(engine: EnginePart) -> Iterator[str]:
    yield f"The engine, by {plain(engine.source, 200)}:"
    amounts = (
        ("weights", engine.weights_bytes),
        ("pool of the cache", engine.pool_bytes),
        ("the rest of what it was allowed", engine.rest_bytes),
        ("activations at their peak", engine.activation_bytes),
        ("CUDA graphs", engine.graph_bytes),
    )
    for name, num_bytes in amounts:
        if num_bytes is not None:
            yield f"  {name}: {gib(num_bytes)}"
    said = (
        (engine.cache_dtype, "cache dtype {}"),
        (engine.num_blocks, "{:,} blocks"),
        (engine.num_tokens, "{:,} tokens"),
        (engine.concurrency, "{:.2f} requests of full length"),
    )
    words = [text.format(value) for value, text in said if value is not None]
    if words:
        yield f"  {plain(', '.join(words), 300)}"
    if engine.agrees:
        yield "  the plan of its cache dtype is the same"


def _rollback(rollback: RollbackPart) -> Iterator[str]:
    yield (
        f"Back to {rollback.baseline}: {rollback.usable_blocks:,} blocks for {rollback.limit:,} requests "
        "at a time"
    )
    for one in rollback.headroom:
        fits = "fits" if one.fits else "does not fit"
        shown = ""
        if one.blocks_needed is not None:
            shown = f", {one.blocks_needed:,.0f} blocks"
        if one.overflow_frac is not None:
            shown = f", {percent(one.overflow_frac)} of the draws need more"
        yield f"  {one.basis:<10} {fits}{shown}; at most {one.largest_limit:,} requests"
        yield f"  {'':<10} ({_MEANS[one.basis]})"
    if rollback.fits:
        yield f"  By the {rollback.basis} case the limit of {rollback.limit:,} can stay."
    else:
        yield (
            f"  By the {rollback.basis} case set --max-num-seqs {rollback.limit_to_set:,} before the larger "
            "cache is restored."
        )
