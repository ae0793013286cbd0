"""A job that runs vLLM in its own environment: a subprocess that tells events and is ended in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, Final

from kvtrace.capture.engine_log import reason_in_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Progress = Callable[[int, int], None]

STOP_TIMEOUT_S: Final = 90.0
"""For vLLM to close what it writes after Ctrl-C; then it is killed."""


@dataclass(slots=True)
class Driven:
    """What a driver has told, and how it ended."""

    total: int = 0
    done: int = 0
    error: str | None = None
    engine: dict[str, Any] | None = None
    """What the engine says of itself, where the driver asks."""
    status: int = 0
    is_interrupted: bool = False
    """By Ctrl-C, or by SIGTERM where the caller has it interrupt (`kvtrace.signals.signals_interrupt`)."""

    def failure(self, log: str) -> str | None:
        """Return why it failed, by its log where that says more; None: it did not."""
        if self.is_interrupted or (self.status == 0 and self.error is None):
            return None
        ended = f"killed by signal {-self.status}" if self.status < 0 else f"exit status {self.status}"
        return reason_in_log(log) or self.error or ended


def drive(module: str, job: dict[str, Any], python: Path, log: Path, progress: Progress) -> Driven:
    """Run `python -m module EVENTS_FD` to its end with a job on its stdin, and return what it told.

    log: a new file for all that it and vLLM print. progress: takes (done, total). Ctrl-C ends the driver in
    good order; it may take `STOP_TIMEOUT_S`, a second one does not wait.
    """
    told = Driven()
    events, events_of_driver = os.pipe()
    with log.open("wb") as file, os.fdopen(events, "rb", buffering=0) as stream:
        process = subprocess.Popen(  # noqa: S603 -- the interpreter that the user named
            [python, "-m", module, str(events_of_driver)],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=[events_of_driver],
            start_new_session=True,  # Ctrl-C is for this process, which lets vLLM end in good order
        )
        os.close(events_of_driver)
        try:
            _send(process, job)
            _listen(process, stream, told, progress)
        except KeyboardInterrupt:
            told.is_interrupted = True
            _stop(process)
        finally:
            _kill(process)
    told.status = process.returncode
    return told


def _send(process: subprocess.Popen[bytes], job: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already: its log says why
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()


def _listen(process: subprocess.Popen[bytes], stream: Any, told: Driven, progress: Progress) -> None:
    """Follow the events until the driver ends; its own children may hold the pipe open for longer."""
    rest = b""
    with DefaultSelector() as selector:
        selector.register(stream, EVENT_READ)
        while True:
            has_ended = process.poll() is not None
            is_ready = bool(selector.select(0.2))
            received = stream.read(65_536) if is_ready else b""
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                event = json.loads(line)
                told.total, told.done = event.get("total", told.total), event.get("done", told.done)
                told.error = event.get("error", told.error)
                told.engine = event.get("engine", told.engine)
                if told.total:
                    progress(told.done, told.total)
            if is_ready and not received:  # every end is closed: nothing more can come
                process.wait()
            if not received and (is_ready or has_ended):
                return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let the driver end in good order; a second Ctrl-C does not wait for it."""
    with suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the driver and its engine processes, which share its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
