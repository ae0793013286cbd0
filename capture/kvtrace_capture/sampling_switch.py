"""Changes the sampling of a running engine when its operator changes the control file.

A thread of its own looks at the file, so that a slow disk never holds up the scheduler. New rules are first
written to `sampling.jsonl` and then handed to the scheduler, which sends each step's plan to all ranks: no
row has a `sampling_id` without a record, and no two ranks sample one step by different rules.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.trace.format import SamplingRecord, seal
from kvtrace_capture.affinity import leave_the_engines_core
from kvtrace_capture.lines_file import write_lines
from kvtrace_capture.settings import SettingsError, change_sampling

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace_capture.settings import CaptureSettings

logger = logging.getLogger("kvtrace.capture")

POLL_SECONDS: Final = 0.5
MAX_CONTROL_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Sampling:
    """Rules that are recorded and may be put in force."""

    sampling_id: int
    settings: CaptureSettings


class SamplingSwitch:
    """The rules that the control file asks for.

    started: the start-up configuration, which holds where there is no control file, or no usable one yet.
    sampling_file: `sampling.jsonl`, written here. Raises OSError if it cannot be; after that nothing raises:
    rules that cannot be read or recorded are logged, and the ones in force stay, unless they switch it off.
    """

    def __init__(self, control_file: Path, started: CaptureSettings, sampling_file: Path) -> None:
        self._control_file = control_file
        self._started = started
        self._sampling_file = sampling_file
        self._lines: list[str] = []
        self._seen: tuple[int, ...] | None = None
        self.current = Sampling(0, self._look() or started)
        """What was recorded last: the scheduler reads it without a lock."""
        self._record(self.current)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvtrace-switch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_closing.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        leave_the_engines_core()
        while not self._is_closing.wait(POLL_SECONDS):
            settings = self._look()
            if settings is None or settings == self.current.settings:
                continue
            self._change(Sampling(self.current.sampling_id + 1, settings))

    def _change(self, changed: Sampling) -> None:
        """Record rules and put them in force. Off may go unrecorded for a while: no row refers to it."""
        try:
            self._record(changed)
        except Exception as error:  # noqa: BLE001 -- the thread must live: capture may have to go off
            if changed.settings.enabled:
                logger.error(
                    "kvtrace: the sampling stays as it is, %s: %s; write the control file again when that is "
                    "mended",
                    *(self._sampling_file, error),
                )
                return
            logger.error("kvtrace: capture is off, and %s does not say so: %s", self._sampling_file, error)
        self.current = changed

    def _look(self) -> CaptureSettings | None:
        """Return the settings that the control file asks for, or None where it is unchanged or broken."""
        version: tuple[int, ...]
        try:
            found = self._control_file.stat()
            version = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        except FileNotFoundError:
            version = ()
        except OSError as error:
            version = (error.errno or -1,)
        if version == self._seen:
            return None
        self._seen = version
        try:
            return read_control(self._control_file, self._started) if version else self._started
        except Exception as error:  # noqa: BLE001 -- whatever is in it, it stops neither a start nor the thread
            logger.error("kvtrace: the sampling stays as it is, %s: %s", self._control_file, error)
            return None

    def _record(self, sampling: Sampling) -> None:
        settings = sampling.settings
        rules = SamplingRecord(
            sampling_id=sampling.sampling_id,
            started_at=time.time(),
            layers=settings.layers,
            workloads=settings.workloads,
            position_stride=settings.position_stride,
            request_fraction=settings.request_fraction if settings.enabled else 0.0,
            byte_budget=settings.byte_budget,
            queries=settings.queries,
        )
        lines = [*self._lines, seal(rules)]
        if not settings.enabled:
            self._lines = lines  # if it cannot be written now, it goes with the next
        write_lines(self._sampling_file, lines)
        self._lines = lines
        what = (
            f"1 in {settings.position_stride} positions of {settings.request_fraction:.4g} of the requests"
            if settings.enabled
            else "off"
        )
        logger.warning("kvtrace: sampling %d: %s (control file: %s)",
                       sampling.sampling_id, what, self._control_file)  # fmt: skip


def read_control(path: Path, started: CaptureSettings) -> CaptureSettings:
    """Return `started` with the changes that a control file asks for.

    Raises OSError: it cannot be read. Raises SettingsError: somebody else than the engine's user or root
    could have written it, it is no JSON object, or it has a key or value that does not fit.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place must not hold the thread
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError("it is not a regular file")
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SettingsError(
                f"it belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}; expected "
                "the engine's own user or root, and nobody else who may write it (chmod 600)"
            )
        content = file.read(MAX_CONTROL_BYTES + 1)
    if len(content) > MAX_CONTROL_BYTES:
        raise SettingsError(f"it is larger than {MAX_CONTROL_BYTES} bytes")
    try:
        changes = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"it is not JSON ({error})") from error
    if not isinstance(changes, dict):
        raise SettingsError('it is not a JSON object, expected one such as {"enabled": true}')
    return change_sampling(started, changes)
