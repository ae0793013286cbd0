"""Change the sampling of a running engine by the control file that its plug-in looks at."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError, KVTraceError
from kvtrace.files.regular import read_regular
from kvtrace.files.replaced import replace_file
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.trace.capture_names import CONTROL_FILE
from kvtrace.trace.folder import traces_in
from kvtrace.trace.opening import read_trace_record
from kvtrace.trace.requests import read_sampling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvtrace.trace.format import SamplingRecord

CONTROLLED: Final = ("enabled", "workloads", "position_stride", "request_fraction", "byte_budget")
"""What can change while an engine runs, by the plug-in's names."""
_MAX_BYTES: Final = 65_536
"""The plug-in reads no more."""
_LOOKED_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class InForce:
    """The latest trace of a capture directory, and the rules that it records as the last."""

    trace: Path
    rules: SamplingRecord
    closed: bool
    """Whether its engine shut down in order, so that nothing is captured into it any more."""


def control_file(directory: Path) -> Path:
    """Return the control file of a capture directory."""
    return directory / CONTROL_FILE


def asked_for(directory: Path) -> dict[str, Any]:
    """Return what the control file asks for; empty where there is none: all is as the engine was started.

    Raises InputError: it is no file that the plug-in would take.
    """
    file = control_file(directory)
    if not os.path.lexists(file):
        return {}
    mended = "kvtrace capture control DIRECTORY --reset removes it"
    try:
        content = parse_strict_json(read_regular(file, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read as JSON ({error}); {mended}") from error
    if not isinstance(content, dict) or (unknown := sorted(set(content) - set(CONTROLLED))):
        what = f"has {unknown[0]!r}" if isinstance(content, dict) else "is no JSON object"
        raise InputError(f"{file}: {what}; expected some of {', '.join(CONTROLLED)}; {mended}")
    return content


def ask(directory: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Write the control file: what it asks for already, with these changes. Return all that it asks for.

    The file is readable by its owner alone and replaced whole, as the plug-in expects.
    Raises InputError: there is no such directory, or it cannot be written.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: is not a directory; expected the one that capture writes traces to")
    wanted = {**asked_for(directory), **changes}
    file = control_file(directory)
    try:
        replace_file(file, json.dumps(wanted) + "\n", mode=0o600)
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror or error}") from error
    return wanted


def reset(directory: Path) -> None:
    """Remove the control file, so that the engine's start-up configuration holds. Raises InputError."""
    try:
        control_file(directory).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{control_file(directory)}: cannot be removed: {error.strerror or error}"
        ) from error


def in_force(directory: Path) -> InForce | None:
    """Return the rules that the latest trace records; None where no trace of the directory can be read."""
    try:
        entries = [entry for entry in traces_in(directory) if entry.record]
        if not entries:
            return None
        latest = entries[0]
        committed = read_trace_record(latest.path).line_commits
        rules = read_sampling(latest.path, committed=committed)
    except KVTraceError:
        return None
    return InForce(latest.path, rules[max(rules)], bool(latest.closed)) if rules else None


def wait_for(directory: Path, wanted: Mapping[str, Any], seconds: float) -> bool:
    """Return whether the engine recorded rules with all that is wanted, within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        found = in_force(directory)
        if found is not None and not found.closed and holds(found.rules, wanted):
            return True
        if time.monotonic() >= until or found is None or found.closed:
            return False
        time.sleep(_LOOKED_EVERY_S)


def holds(rules: SamplingRecord, wanted: Mapping[str, Any]) -> bool:
    """Return whether recorded rules are those that a control file wants, as far as it says anything.

    While capture is off the record's `request_fraction` is 0, whatever else is wanted.
    """
    if wanted.get("enabled") is False:
        return rules.request_fraction == 0
    recorded = rules.model_dump()
    recorded["enabled"] = rules.request_fraction > 0
    recorded["workloads"] = None if rules.workloads is None else list(rules.workloads)
    return all(recorded[key] == value for key, value in wanted.items())
