"""Whether a stored profile's outlier channels, and the counts of their values, can be some of its trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvtrace.profile.counts import OutlierCounts, TensorProfile
    from kvtrace.trace.profile_format import TensorRecord

_CODE_BITS: Final = 15


def problems_of_channels(record: TensorRecord, num_cells: int, num_tokens: int) -> Iterator[str]:
    """Yield why no profile can have these outlier channels, or so many entries of them.

    Each is looked for in a record that has none of those before; the KV heads and head_dim are the trace's.
    """
    channels = record.outlier_channels or ((),) * len(record.kv_heads)
    if len(channels) != len(record.kv_heads):
        yield f"has outlier channels of {len(channels)} KV heads, expected {len(record.kv_heads)}"
    most = record.head_dim // 2
    for head, own in zip(record.kv_heads, channels, strict=False):
        if list(own) != sorted(set(own)) or len(own) > most or not all(0 <= c < record.head_dim for c in own):
            yield (
                f"has impossible outlier channels in KV head {head}, expected at most {most} of 0 to "
                f"{record.head_dim - 1}, ascending"
            )
    room = sum(min(num_cells << _CODE_BITS, num_tokens * len(own)) for own in channels)
    if not 0 <= record.num_outlier_entries <= room:
        yield f"has {record.num_outlier_entries:,} entries of outlier channels, expected 0 to {room:,}"


def problems_of_outliers(tensor: TensorProfile) -> Iterator[tuple[str, str]]:
    """Yield arrays of outlier channels that no profile can have, by name, and why.

    The record and the counts of all channels have no problem.
    """
    if tensor.outliers is None:
        return
    counts = tensor.outliers
    if counts.start[0] != 0 or counts.start[-1] != len(counts.code):
        ends = f"{counts.start[0]:,} to {counts.start[-1]:,}"
        yield "outlier_start", f"it goes from {ends}, expected 0 to {len(counts.code):,}"
    # Compared, not subtracted: a difference may wrap.
    if (counts.start[1:] < counts.start[:-1]).any():
        yield "outlier_start", "it falls, expected never"
    if (counts.code >> _CODE_BITS).any():
        yield "outlier_code", f"it has codes above {(1 << _CODE_BITS) - 1:,}"
    keys, all_keys = _keys(counts), _keys(tensor)
    if (keys[1:] <= keys[:-1]).any():
        yield "outlier_code", "its codes do not ascend within a KV head's cell"
    place = np.searchsorted(all_keys, keys).clip(max=max(0, len(all_keys) - 1))
    is_there = all_keys[place] == keys if len(all_keys) else np.zeros(len(keys), bool)
    if not is_there.all():
        yield "outlier_code", "it has a code that is not among those of all channels"
    if (counts.count == 0).any() or (counts.count > tensor.count[place]).any():
        yield "outlier_count", "it counts no value of a code, or more than all channels have"
    of_head = np.array([len(own) for own in tensor.record.outlier_channels or ()])
    share = np.repeat(of_head, tensor.num_cells)
    if (_per_cell(counts) * tensor.record.head_dim != _per_cell(tensor) * share).any():
        yield "outlier_count", "it counts other numbers of values than the outlier channels have"


def _keys(counts: OutlierCounts | TensorProfile) -> NDArray[np.int64]:
    """Return (kv_head, cell, code) of every entry as one sortable number."""
    segment = np.repeat(np.arange(len(counts.start) - 1), np.diff(counts.start))
    keys: NDArray[np.int64] = (segment << _CODE_BITS) | counts.code
    return keys


def _per_cell(counts: OutlierCounts | TensorProfile) -> NDArray[np.int64]:
    """Return the values of each (kv_head, cell)."""
    totals: NDArray[np.int64] = np.diff(np.append(0, np.cumsum(counts.count, dtype=np.int64))[counts.start])
    return totals
