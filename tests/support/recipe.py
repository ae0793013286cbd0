"""A copy of the tree to add something to, and which of its files that took."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = (
    "kvtrace",
    "queries",
    "capture/kvtrace_capture",
    "tests/support",
    "tests/conftest.py",
    "pyproject.toml",
)


class TreeCopy:
    """What a contributor's change needs of the repository, to be changed and run there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in COPIED:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                # With what numba compiled, which it looks up by the files' times.
                shutil.copytree(ROOT / name, path / name)
            else:
                shutil.copy2(ROOT / name, path / name)

    def add(self, name: str, text: str) -> None:
        """Write a new file."""
        path = self.path / name
        assert not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace the one place where `old` stands."""
        path = self.path / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
        path.write_text(text.replace(old, new))

    def touched(self) -> set[str]:
        """Return the files that were added or edited."""
        files = (p for p in self.path.rglob("*") if p.is_file() and p.suffix not in (".pyc", ".nbi", ".nbc"))
        names = {path.relative_to(self.path).as_posix() for path in files}
        return {
            name
            for name in names
            if not (ROOT / name).exists() or (ROOT / name).read_bytes() != (self.path / name).read_bytes()
        }

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run `python ARGUMENTS` on the copy's code."""
        places = os.pathsep.join(str(self.path / name) for name in (".", "capture"))
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.path,
            env=os.environ | {"PYTHONPATH": places},
            capture_output=True,
            text=True,
            check=False,
        )

    def test(self, name: str) -> None:
        """Run the copy's tests in a file, doctests included; they must pass, and there must be some."""
        done = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", name)
        assert done.returncode == 0, done.stdout + done.stderr
