"""One damaged trace: whoever reads it must name the file, or find what an undamaged one holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.errors import InputError
from kvtrace.profile.store import find_profile, verify_profiles
from kvtrace.trace.cells import find_cells, find_group_cells
from kvtrace.trace.profile_format import GROUPS_DIRECTORY, PROFILE_DIRECTORY
from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from faults.damage import Damage

NAMED, NO_EFFECT = "named", "no effect"


@dataclass(frozen=True, slots=True)
class Undamaged:
    """What a sound trace gives."""

    values: dict[str, Any]
    profile: dict[str, str]


def what_it_gives(trace: Path) -> Undamaged:
    """Return all that numbers are made of: what a reader yields, and the profile's arrays."""
    return Undamaged(read_values(trace), read_profile(trace))


def read_values(path: Path) -> dict[str, Any]:
    """Return everything that a reader learns from a trace, tensors as digests."""
    trace = open_trace(path)
    blocks = [
        (block.layer.index, block.tensor, block.kv_heads, _digest(block.row), _digest(block.values))
        for block in trace.blocks()
    ]
    tokens = trace.tokens
    return {
        "record": trace.record,
        "requests": trace.requests,
        "sampling": trace.sampling,
        "dropped": [store.dropped for store in trace.ranks],
        "layers": trace.layers,
        "tokens": [
            _digest(getattr(tokens, name))
            for name in ("request", "position", "sampling_id", "phase", "octave")
        ],
        "counts": (trace.joined.num_superseded, trace.joined.num_unknown, trace.joined.num_beyond_end),
        "closed": [store.commit.closed for store in trace.ranks],
        "blocks": blocks,
    }


def read_profile(path: Path) -> dict[str, str]:
    """Return the digests of the arrays of both profiles, without those that would not be used."""
    trace, found = open_trace(path), {}
    for directory, cells in (
        (PROFILE_DIRECTORY, find_cells(trace)),
        (GROUPS_DIRECTORY, find_group_cells(trace)),
    ):
        profile = find_profile(trace, directory)
        if profile is not None and profile.is_over(cells):
            found[f"{directory}/cells"] = repr(profile.record.cells)
            for one in profile.tensors():
                for name in ("code", "count", "start", "absmax"):
                    place = f"{directory}/{one.record.layer}/{one.record.tensor}/{name}"
                    found[place] = _digest(getattr(one, name))
    return found


def judge_readers(trace: Path, damage: Damage, undamaged: Undamaged) -> dict[str, str]:
    """Return NAMED or NO_EFFECT for each way to read a trace. Raises AssertionError where it is neither.

    Anything but an InputError goes through: a user would see a traceback.
    """

    def same_values() -> None:
        found = read_values(trace)
        differing = [key for key, value in undamaged.values.items() if found[key] != value]
        assert not differing, f"{damage}: reads other {', '.join(differing)} without a word"

    def same_profile() -> None:
        found = read_profile(trace)
        # No profile is no harm: replay makes one, from what `same_values` has compared.
        assert found.items() <= undamaged.profile.items(), f"{damage}: a profile holds other numbers"

    def verify() -> None:
        opened = open_trace(trace)
        summarize(opened, verify=True)
        verify_profiles(opened)

    ways = {
        "read": same_values,
        "replay": same_profile,
        "inspect --verify": verify,
    }
    found = {name: _judge(trace, damage, way) for name, way in ways.items()}
    is_chunk = damage.file_kind in ("row chunk", "tensor chunk", "profile array")
    if is_chunk and damage.kind != "remove folder":
        assert found["inspect --verify"] == NAMED, f"{damage}: --verify calls a damaged chunk sound"
    return found


def _judge(trace: Path, damage: Damage, way: Callable[[], object]) -> str:
    try:
        way()
    except InputError as error:
        text = " ".join(str(error).split())
        named = any(file in text for file in damage.files) or _names_a_part(text, trace, damage)
        assert named, f"{damage}: the error names another file: {text}"
        return NAMED
    return NO_EFFECT


def _names_a_part(text: str, trace: Path, damage: Damage) -> bool:
    """Return whether the error names the profile to delete, or the trace that lacks its record."""
    if damage.file_kind == "profile.json":
        return any(f"Delete {trace}/{file.partition('/')[0]}:" in text for file in damage.files)
    return damage.file == "trace.json" and str(trace) in text


def _digest(values: Any) -> str:
    array = np.ascontiguousarray(values)
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
