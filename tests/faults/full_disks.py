"""Every command that writes, on disks that fill up: one line, the right exit code, and no old file lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from support.run_cli import kvtrace

from faults.commands import CommandCase
from faults.inputs import OLD, WRITERS, Inputs, problem
from faults.scratch import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEFT_BYTES: Final = (0, 4 << 10, 32 << 10, 256 << 10)
"""What is free when a command begins."""
_DISK_BYTES: Final = 16 << 20


def fill_disks(folder: Path) -> Iterator[CommandCase]:
    """Yield commands whose output lies on a disk that is (nearly) full.

    Raises PermissionError: none can be mounted.
    """
    inputs = Inputs(folder)
    yield from _traces_that_cannot_be_written(inputs, folder)
    for command, written in WRITERS.items():
        for left in LEFT_BYTES:
            with small_disk(folder / "disk", _DISK_BYTES) as disk:
                output = disk / "output"
                inputs.old(written, output)
                _fill(disk, left)
                ended = kvtrace(*written.arguments(inputs, output))
                found = problem(written, output)
                if ended.returncode not in (0, 2, 3) or "Traceback" in ended.stderr:
                    found = f"ended with {ended.returncode}: {ended.stderr[-300:]}"
                errors = [line for line in ended.stderr.splitlines() if line.startswith("kvtrace: ")]
                if ended.returncode == 2 and len(errors) != 1:
                    found = f"says {ended.stderr[-300:]!r}"
                if ended.returncode == 2 and output.is_file() and output.read_text() != OLD:
                    found = "failed, and replaced what was there"
                left_over = [path.name for path in disk.iterdir() if path.name not in _MEANT]
                if left_over:
                    found = f"left {left_over}"
            (folder / "disk").rmdir()
            yield CommandCase(command, f"{left:,} bytes left, ended with {ended.returncode}", found)


def _traces_that_cannot_be_written(inputs: Inputs, folder: Path) -> Iterator[CommandCase]:
    """Yield reports of a trace on a disk that takes no counts: they are worked out elsewhere."""
    for what in ("full", "read-only"):
        with small_disk(folder / "disk", _DISK_BYTES) as disk:
            trace = shutil.copytree(inputs.trace, disk / "t.kvtrace")
            if what == "full":
                _fill(disk, 0)
            else:
                subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            before = sorted(disk.rglob("*"))
            ended = kvtrace("report", trace)
            is_said = "cannot be written, so its counts are not kept" in ended.stderr
            is_right = ended.returncode == 0 and is_said and sorted(disk.rglob("*")) == before
            yield CommandCase(
                "report",
                f"trace on a {what} disk, ended with {ended.returncode}",
                "" if is_right else ended.stderr,
            )
        (folder / "disk").rmdir()


_MEANT: Final = ("filler", "output", "kvtrace.key", "output.log")
"""The key of hashes, and the log that a capture keeps when it fails, stay beside its output."""


def _fill(disk: Path, left: int) -> None:
    with (disk / "filler").open("wb") as filler:
        found = os.statvfs(disk)
        filler.write(bytes(max(0, found.f_bavail * found.f_frsize - left)))
