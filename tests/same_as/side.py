"""A side of the comparison: a source tree, a folder to work in, and commands run with that tree's code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""The working tree."""
_SERVER = Path(__file__).with_name("fork_server.py")


@dataclass
class Side:
    """A source `tree` and a folder to `work` in; the two folders have names of one length, as lines wrap."""

    name: str
    tree: Path
    work: Path
    cpu_s: float = 0.0
    """What its commands took."""
    _server: subprocess.Popen[str] | None = field(default=None, repr=False)

    def python(self, *arguments: str | Path) -> str:
        """Run Python with this side's code and return its output. Raises SystemExit with its error."""
        # -P: the folder of a script must not come before the standard library.
        command = [sys.executable, "-P", *map(str, arguments)]
        ended = subprocess.run(command, env=self._environment(), capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"same_as: {' '.join(command)}, on the side of {self.name}:\n{ended.stderr}")
        return ended.stdout

    def check_is_used(self) -> None:
        """Raise SystemExit if `import kvtrace` would take another tree's."""
        found = Path(self.python("-c", "import kvtrace; print(kvtrace.__file__)").strip())
        if not found.is_relative_to(self.tree):
            raise SystemExit(f"same_as: kvtrace is {found}, expected one inside {self.tree}")

    def run(self, argv: list[str], cwd: Path, columns: int) -> dict[str, Any]:
        """Run `python -m kvtrace ARGV` in `cwd`; return `exit`, `cpu_s`, and `stdout`, `stderr` as bytes."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-P", str(_SERVER)],
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        printed = {stream: self.work / stream for stream in ("stdout", "stderr")}
        command = {
            "argv": argv,
            "cwd": str(cwd),
            "env": {"COLUMNS": str(columns)},
            **{stream: str(path) for stream, path in printed.items()},
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(command) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise SystemExit(f"same_as: the server of {self.name} ended at kvtrace {' '.join(argv)}")
        ended: dict[str, Any] = json.loads(answer)
        self.cpu_s += ended["cpu_s"]
        return ended | {stream: path.read_bytes() for stream, path in printed.items()}

    def stop(self) -> None:
        """End the server, and a command that still runs in it."""
        if self._server is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = None

    def plain(self, content: bytes) -> bytes:
        """Return the bytes with this side's own folders named alike on both sides."""
        for path, name in ((self.work, b"<work>"), (self.tree, b"<tree>")):
            content = content.replace(str(path).encode(), name)
        return content

    def _environment(self) -> dict[str, str]:
        parts = [self.tree, self.tree / "capture", self.tree / "tests", self.tree / "tests" / "support"]
        kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
        return kept | {"PYTHONPATH": os.pathsep.join(map(str, parts)), "TERM": "dumb", "HF_HUB_OFFLINE": "1"}


def commit_of(base: str) -> str:
    """Return the full name of a commit. Raises SystemExit: there is no such commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}"]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"same_as: {base}: no such commit here; expected a branch, a tag or a hash")
    return found.stdout.strip()


def check_out(commit: str, folder: Path) -> None:
    """Write a commit's files to a new folder; the repository and its working trees stay as they are."""
    folder.mkdir(parents=True)
    archived = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], stdout=subprocess.PIPE, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archived, check=True)
