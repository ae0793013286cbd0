"""What a trace says of speculative decoding: drafts proposed and accepted, and a draft model's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.plain_text import plain
from kvtrace.trace.format import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.trace.reader import Trace

_MOST_LAYERS: Final = 2


class DraftsSummary(Record):
    """Of finished requests, over all of them whether sampled or not."""

    num_proposed: int
    """Drafts that the model verified."""
    num_accepted: int
    """Those of them that became output tokens."""
    num_requests: int
    """Requests with at least one proposed draft."""
    layers_left_out: tuple[str, ...]
    """A draft model's attention layers, which are not captured."""


def summarize_drafts(trace: Trace) -> DraftsSummary | None:
    """Return what is known of drafts; None where there was no speculative decoding, or before format 1.4."""
    counted = [one for one in trace.requests.values() if one.drafts_proposed is not None]
    left_out = sorted({name for store in trace.ranks for name in store.rank.draft_layers})
    if not counted and not left_out:
        return None
    return DraftsSummary(
        num_proposed=sum(one.drafts_proposed or 0 for one in counted),
        num_accepted=sum(one.drafts_accepted or 0 for one in counted),
        num_requests=sum(bool(one.drafts_proposed) for one in counted),
        layers_left_out=tuple(left_out),
    )


def draft_lines(drafts: DraftsSummary | None) -> Iterator[str]:
    """Yield it as lines of at most 80 columns."""
    if drafts is None:
        return
    share = f" ({100 * drafts.num_accepted / drafts.num_proposed:.1f} %)" if drafts.num_proposed else ""
    where = f" in {drafts.num_requests:,} requests" if drafts.num_proposed else ""
    yield f"drafts    {drafts.num_proposed:,} proposed, {drafts.num_accepted:,} accepted{share}{where}"
    if names := drafts.layers_left_out:
        yield f"          {len(names)} layer(s) of the draft model are not captured:"
        yield from (f"          {plain(name, 68)}" for name in names[:_MOST_LAYERS])
        if len(names) > _MOST_LAYERS:
            yield f"          and {len(names) - _MOST_LAYERS} more"
