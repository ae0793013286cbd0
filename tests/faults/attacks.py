"""What others can do to a capture in a real vLLM: crowd its queue, share its directory, label requests."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

from kvtrace.trace.capture_names import (
    CLIENT_ID_KEY,
    CONTROL_FILE,
    KEY_FILE,
    MAX_LABEL_CHARS,
    WORKLOAD_KEY,
)
from kvtrace.trace.reader import open_trace
from kvtrace.trace.summary import summarize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from faults.in_vllm import Faults

NOBODY: Final = 65534
_QUEUE_BYTES: Final = 100_000
"""Some 40 rows of three layers: a step of a prompt has more."""
_DIGITS: Final = 100_000
_START_SECONDS: Final = 400


def queue_overflows(faults: Faults, folder: Path) -> str:
    """The queue takes fewer rows than a step of a prompt has."""
    engine = faults.start("crowded", queue_bytes=_QUEUE_BYTES)
    assert engine.outputs() == faults.expected_outputs
    assert engine.trace is not None
    found = faults.check_values(engine.trace)
    opened = open_trace(engine.trace)
    dropped = [counts for store in opened.ranks for counts in store.dropped.values()]
    num_dropped = sum(counts.get("queue_full", 0) for counts in dropped)
    stored = sum(chunk.num_rows for store in opened.ranks for chunk in store.commit.chunks)
    assert num_dropped > 0
    assert all(set(counts) == {"queue_full"} for counts in dropped)
    assert stored + num_dropped == faults.num_rows, f"{stored} + {num_dropped} of {faults.num_rows} rows"
    assert summarize(opened, verify=True).closed
    return f"outputs equal; {found:,} vectors, all the reference's; {num_dropped:,} dropped and counted"


def links_in_a_shared_directory(faults: Faults, folder: Path) -> str:
    """Somebody else may write to the directory: a control file, and a link that is named like the trace."""
    traces, elsewhere = folder / "shared", folder / "elsewhere"
    for path in (traces, elsewhere):
        path.mkdir(mode=0o1777)
        path.chmod(0o1777)
    control = traces / CONTROL_FILE
    control.write_text(json.dumps({"enabled": False}))
    os.chown(control, NOBODY, NOBODY)
    engine = faults.start("among-others", traces)
    deadline = time.monotonic() + _START_SECONDS
    while engine.trace is None:
        assert engine.process.poll() is None, engine.log[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    trace = engine.trace
    link = traces / f"99991231T000000Z-{trace.name.rpartition('-')[2]}"
    link.symlink_to(elsewhere)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert not (trace / "requests.jsonl").exists(), "the link came too late to be an attack"
    assert engine.outputs() == faults.expected_outputs
    assert not list(elsewhere.iterdir()), "the capture followed the link"
    assert f"belongs to user {NOBODY}" in engine.log
    found = faults.check_values(trace)
    assert found == len(faults.expected_values)
    return f"outputs equal; all {found:,} vectors; the control file is refused, the link passed over"


def a_planted_key(faults: Faults, folder: Path) -> str:
    """A key of hashes that somebody else has put there, or has a link to."""
    told = []
    for name, expected in (("a link", "is a link, expected the file itself"), ("theirs", "belongs to user")):
        traces = folder / f"planted-{name}".replace(" ", "-")
        traces.mkdir()
        key = traces / KEY_FILE
        if name == "a link":
            (folder / "their.key").write_bytes(bytes(32))
            key.symlink_to(folder / "their.key")
        else:
            key.write_bytes(bytes(32))
            key.chmod(0o600)
            os.chown(key, NOBODY, NOBODY)
        engine = faults.start(f"key-{name}".replace(" ", "-"), traces)
        assert engine.process.wait(_START_SECONDS) != 0
        assert expected in engine.log, engine.log[-3000:]
        assert engine.num_rows() == 0
        told.append(name)
    return f"the engine does not start, and says why: {', '.join(told)}"


def endless_labels(faults: Faults, folder: Path) -> str:
    """Clients label their requests with numbers of 100,000 digits."""
    labels: dict[str, Any] = {WORKLOAD_KEY: "9" * _DIGITS, CLIENT_ID_KEY: "8" * _DIGITS}
    engine = faults.start("labelled", labels=labels)
    assert engine.outputs() == faults.expected_outputs
    assert engine.trace is not None
    found = faults.check_values(engine.trace)
    assert found == len(faults.expected_values)
    requests = open_trace(engine.trace).requests.values()
    assert {request.workload for request in requests} == {"9" * MAX_LABEL_CHARS}
    assert {len(request.client_id or "") for request in requests} == {64}
    return f"outputs equal; all {found:,} vectors; labels of {MAX_LABEL_CHARS} characters"


ATTACKS: Final[dict[str, Callable[[Faults, Path], str]]] = {
    "its queue overflows": queue_overflows,
    "links beside its trace": links_in_a_shared_directory,
    "a planted key": a_planted_key,
    "labels of 10^5 digits": endless_labels,
}
