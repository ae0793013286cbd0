"""One repair: every value that is kept is the original's, and what is not kept is seen to be missing."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.errors import InputError
from kvtrace.trace.reader import open_trace
from kvtrace.trace.repair.repair import repair_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from faults.damage import Damage
    from kvtrace.trace.reader import Trace

Place = tuple[int, int, int, str, int]
"""(request, position, layer, tensor, KV head)"""

KEPT_ALL, KEPT_SOME, KEPT_NOTHING = "kept all", "kept some", "kept nothing"


def values_by_place(trace: Trace) -> dict[Place, bytes]:
    """Return every stored vector's bits by where it belongs."""
    found: dict[Place, bytes] = {}
    for block in trace.blocks():
        requests, positions = trace.tokens.request[block.row], trace.tokens.position[block.row]
        for request, position, vectors in zip(
            requests.tolist(), positions.tolist(), block.values, strict=True
        ):
            for head, vector in zip(block.kv_heads, vectors, strict=True):
                place = (request, position, block.layer.index, block.tensor, head)
                assert place not in found
                found[place] = vector.tobytes()
    return found


def judge_repair(trace: Path, damage: Damage, original: Trace, values: dict[Place, bytes]) -> str:
    """Repair a damaged trace and return what was kept. Raises AssertionError where a value is another one.

    original, values: the undamaged trace. Every vector that the repaired one lacks must show: its request is
    absent, still runs, or has more rows counted as dropped than the original.
    """
    before, new = _state(trace), trace.with_name("repaired.kvtrace")
    try:
        repair = repair_trace(trace, new)
    except InputError as error:
        text = str(error)
        assert "nothing can be kept" in text or "trace.json" in text, f"{damage}: {text}"
        assert not new.exists()
        return KEPT_NOTHING
    finally:
        assert _state(trace) == before, f"{damage}: the repair changed the original"
    opened = open_trace(new)
    assert summarize(opened, verify=True).repair == repair
    assert opened.record.repaired_from == repair.from_digest
    kept = values_by_place(opened)
    wrong = [place for place, value in kept.items() if values.get(place) != value]
    assert not wrong, f"{damage}: {len(wrong)} repaired values are not the original's, such as {wrong[0]}"
    phase = _phases(original)
    assert all(phase[token] == found for token, found in _phases(opened).items()), f"{damage}: other phases"
    unseen = {place[0] for place in values.keys() - kept.keys()} - _marked(opened, original)
    assert not unseen, f"{damage}: values of requests {sorted(unseen)} are lost, and nothing shows it"
    if repair.is_complete:
        assert len(kept) == len(values), f"{damage}: says that nothing was lost"
    return KEPT_ALL if len(kept) == len(values) else KEPT_SOME


def _marked(trace: Trace, original: Trace) -> set[int]:
    dropped, before = _dropped(trace), _dropped(original)
    return {
        number
        for number in original.requests
        if number not in trace.requests
        or trace.requests[number].status == "running"
        or dropped[number] > before[number]
    }


def _dropped(trace: Trace) -> Counter[int]:
    return Counter({n: sum(sum(s.dropped.get(n, {}).values()) for s in trace.ranks) for n in trace.requests})


def _phases(trace: Trace) -> dict[tuple[int, int], Any]:
    tokens = trace.tokens
    keys = zip(tokens.request.tolist(), tokens.position.tolist(), strict=True)
    columns: NDArray[Any] = np.stack([tokens.phase, tokens.octave, tokens.sampling_id], axis=1)
    return {key: tuple(row) for key, row in zip(keys, columns.tolist(), strict=True)}


def _state(trace: Path) -> dict[str, Any]:
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in trace.rglob("*")
        if path.is_file()
    }
