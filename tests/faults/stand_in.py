"""What `kvtrace capture run` starts, without vLLM: real rows through the real writer, on the driver's terms.

`python -m faults.stand_in EVENTS_FD`: the job on stdin, events to EVENTS_FD, SIGTERM or the end of stdin ends
it in order. See `kvtrace_capture.offline`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace_capture.journal import Journal
from kvtrace_capture.lines_file import write_lines
from kvtrace_capture.privacy import key_id, load_or_make_key
from kvtrace_capture.private_files import write_private
from kvtrace_capture.trace_directory import make_trace_directory
from kvtrace_capture.writer import StepRows, TraceWriter

from faults.feeding import HEADS, LAYERS, sample, tensors
from faults.small_trace import rank_record
from kvtrace.trace.format import REQUESTS_FILE, SAMPLING_FILE, TRACE_FILE, PrivacyRecord, rank_directory, seal

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROWS_A_STEP: Final = 4
_SECONDS_A_STEP: Final = 0.02
_NUM_STEPS: Final = 50


def main(events_fd: int) -> None:
    with os.fdopen(events_fd, "w", buffering=1, encoding="utf-8") as events:

        def tell(event: dict[str, Any]) -> None:
            events.write(json.dumps(event) + "\n")

        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        job = json.loads(sys.stdin.readline())
        threading.Thread(target=_stop_at_end_of_stdin, daemon=True).start()
        try:
            _capture(job["engine"]["kv_transfer_config"]["kv_connector_extra_config"], tell)
        except OSError as error:
            tell({"error": f"{type(error).__name__}: {error}"})
            raise


def _capture(settings: dict[str, Any], tell: Any) -> None:
    trace = make_trace_directory(Path(settings["directory"]), "0123456789ab")
    key = load_or_make_key(Path(settings["hash_key_file"]))
    record = sample().record.model_copy(
        update={"line_commits": True, "privacy": PrivacyRecord(key_id=key_id(key))}
    )
    write_private(trace / TRACE_FILE, seal(record, indent=1))
    write_lines(trace / SAMPLING_FILE, [seal(rules) for rules in sample().sampling.values()])
    rank = rank_record(sample(), LAYERS, rank=0, heads=HEADS)
    writer = TraceWriter(trace / rank_directory(0), rank, flush_seconds=0.1)
    journal = Journal(trace / REQUESTS_FILE)
    try:
        for request in sample().requests.values():
            journal.append(seal(request))
        tell({"total": _NUM_STEPS})
        for number, rows in enumerate(_steps()):
            writer.append(rows)
            time.sleep(_SECONDS_A_STEP)
            tell({"done": number + 1})
    finally:
        journal.close()
        writer.close()


def _steps() -> Iterator[StepRows]:
    rows = sample().ranks[0].rows
    for number in range(_NUM_STEPS):
        step = slice(number * _ROWS_A_STEP, (number + 1) * _ROWS_A_STEP)
        yield StepRows(
            request=rows["request"][step],
            position=rows["position"][step],
            sampling_id=rows["sampling_id"][step],
            step=number,
            tensors={key: values[step] for key, values in tensors().items()},
        )


def _stop_at_end_of_stdin() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(int(sys.argv[1]))
