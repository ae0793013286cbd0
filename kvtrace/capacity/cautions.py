"""What an operator must know before trusting a smaller cache: why it holds less than its bytes promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.capacity.report import FormatPart, WarningPart
from kvtrace.figures import percent
from kvtrace.formats import LayeredFormat, parse_format
from kvtrace.formats.layered import MAP_UNREAD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from kvtrace.capacity.engine_facts import EngineFacts
    from kvtrace.capacity.model import ModelLayers
    from kvtrace.capacity.plan import CachePlan
    from kvtrace.capacity.report import CapacityReport

_AS_PROMISED: Final = 0.98
"""A gain in tokens of this share of the gain in bytes needs no explanation."""
_MOST_OF_THE_GAIN: Final = 0.5
_PADDED: Final = 0.02


def warnings_of(
    model: ModelLayers,
    plans: Mapping[str, CachePlan],
    formats: Sequence[FormatPart],
    engine: EngineFacts | None,
    *,
    agrees: bool | None,
) -> Iterator[WarningPart]:
    """Yield the warnings, those of one cache dtype together.

    agrees: whether the plan is the engine's; None: it cannot be told.
    """
    by_label = {one.label: one for one in formats}
    for one in formats:
        if one.reason is None:
            yield from _of_one(model, plans, one, by_label)
    yield from _of_the_heads(formats)
    if engine is not None and agrees is False:
        yield WarningPart(
            kind="differs-from-engine",
            label=str(engine.cache_dtype),
            text=f"the engine has {_said(engine)}, which the plan does not give: trust the engine's, and say "
            "what it was started with (--block-size, --max-num-batched-tokens, --backend, --draft)",
        )


def with_unread_maps(report: CapacityReport, labels: Collection[str]) -> CapacityReport:
    """Return a report with a warning for each row that a checkpoint's map of layers gave. labels: those rows.

    Where one format is everywhere there is no map to read.
    """
    unread = tuple(
        WarningPart(kind="map-unread", label=one.label, text=MAP_UNREAD.text)
        for one in report.formats
        if one.label in labels and isinstance(parse_format(one.label), LayeredFormat)
    )
    return report.model_copy(update={"warnings": (*report.warnings, *unread)})


def _of_one(
    model: ModelLayers,
    plans: Mapping[str, CachePlan],
    one: FormatPart,
    by_label: Mapping[str, FormatPart],
) -> Iterator[WarningPart]:
    if one.holds_one_request is False:
        yield WarningPart(
            kind="too-small",
            label=one.label,
            text=f"one request of full length takes {one.blocks_per_request:,} blocks, and "
            f"{one.usable_blocks:,} can hold tokens: vLLM does not start so",
        )
    if one.vllm_flags is None:
        yield WarningPart(
            kind="not-served",
            label=one.label,
            text="no released vLLM serves it; bytes a token are exact, and blocks are as if vLLM laid out "
            "pages of several sizes as beside skipped layers",
        )
    all_quantized = by_label.get(one.cache_dtype)
    if one.skip_layers and all_quantized is not None and all_quantized.reason is None:
        yield from _of_skipping(one, all_quantized, by_label["auto"])
    if one.cache_dtype == "auto" or one.skip_layers:
        return
    gain, promised = one.times_auto_tokens, one.times_auto_bytes
    if gain is None or promised is None or gain >= promised * _AS_PROMISED:
        return
    block, before = one.block_size or 0, plans["auto"].pages.block_size
    if model.is_hybrid:
        yield WarningPart(
            kind="state-block",
            label=one.label,
            text=f"holds {gain:.2f} × the tokens of auto, not {promised:.2f} ×: the states stay as large, so "
            f"blocks grow from {before} to {block} tokens or their share of the pool does",
        )
    elif (one.padding_frac or 0) > _PADDED:
        yield WarningPart(
            kind="padding",
            label=one.label,
            text=f"holds {gain:.2f} × the tokens of auto, not {promised:.2f} ×: pages are padded to the "
            f"largest, {percent(one.padding_frac)} of every block is not used",
        )
    else:
        yield WarningPart(
            kind="block-rounding",
            label=one.label,
            text=f"holds {gain:.2f} × the tokens of auto, not {promised:.2f} ×: requests are rounded up to "
            f"blocks of {block} tokens, {before} before",
        )


def _of_skipping(one: FormatPart, all_quantized: FormatPart, auto: FormatPart) -> Iterator[WarningPart]:
    """Warn where native layers take most of the gain with them, since all groups share one size of block."""
    gain, without_skipping = one.times_auto_tokens, all_quantized.times_auto_tokens
    if gain is None or without_skipping is None or len(one.groups) < 2:
        return
    if gain - 1 >= (without_skipping - 1) * _MOST_OF_THE_GAIN:
        return
    block, before = one.bytes_per_block or 0, auto.bytes_per_block or 0
    as_before = ", as under auto" if block == before else f", {before:,} under auto"
    yield WarningPart(
        kind="padding",
        label=one.label,
        text=f"skipping saves almost nothing: {gain:.2f} × the tokens of auto, {without_skipping:.2f} × if "
        f"nothing is skipped. All pages are made as large as the native layers', a block takes {block:,} "
        f"bytes{as_before}, and only the quantized layers get more tokens into theirs",
    )


def _of_the_heads(formats: Sequence[FormatPart]) -> Iterator[WarningPart]:
    first = next((one for one in formats if one.reason is None), None)
    if first is not None and (first.head_copies or 1) > 1:
        yield WarningPart(
            kind="head-copies",
            label=first.label,
            text=f"{first.head_copies} ranks hold the same K and V: more ranks do not make a token smaller "
            "on each of them",
        )


def _said(engine: EngineFacts) -> str:
    if engine.num_blocks is not None:
        return f"{engine.num_blocks:,} blocks"
    return f"{engine.num_tokens:,} tokens"
