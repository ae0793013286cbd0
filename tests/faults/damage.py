"""Random damage to one trace: which file, and what happens to it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from pathlib import Path

KINDS: Final = (
    "flip",
    "flip unseen",
    "cut",
    "cut at a line",
    "append",
    "remove",
    "remove folder",
    "swap",
    "copy",
)


@dataclass(frozen=True, slots=True)
class Damage:
    """One case. Paths are relative to the trace."""

    kind: str
    file: str
    file_kind: str
    detail: str
    other: str = ""
    """The second file of a swap or copy."""

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files of which an error must name one."""
        return (self.file, self.other) if self.other else (self.file,)

    def __str__(self) -> str:
        return f"{self.kind} {self.file} {self.detail} {self.other}".strip()


def kind_of_file(path: str) -> str:
    """Return what a file of a trace is: the name its damage is counted under.

    >>> [kind_of_file(path) for path in ("trace.json", "rank-1.zarr/layers/14/v/c/0/0/0")]
    ['trace.json', 'tensor chunk']
    """
    parts = path.split("/")
    if parts[0].startswith("profile"):
        if parts[1:2] == ["chunks"]:
            return "profile chunk list"
        return {"profile.json": "profile.json", "zarr.json": "profile zarr.json"}.get(
            parts[-1], "profile array"
        )
    if "c" in parts:
        return "row chunk" if "rows" in parts else "tensor chunk"
    if parts[-1] == "zarr.json":
        is_array = parts[-2] in ("k", "v") or parts[-3:-1] == ["rows", "kv"][1:] or "kv" in parts[:-2]
        return "array zarr.json" if is_array else "group zarr.json"
    return parts[-1]


def files_of(trace: Path) -> list[str]:
    """Return every file of a trace, sorted."""
    return sorted(str(path.relative_to(trace)) for path in trace.rglob("*") if path.is_file())


def copy_trace(base: Path, path: Path) -> None:
    """Copy a trace by hard links: `apply_damage` replaces files and never writes into one."""
    path.parent.mkdir(exist_ok=True)
    shutil.copytree(base, path, copy_function=os.link)


def draw_damage(random: random.Random, base: Path) -> Damage:
    """Draw what happens to which file: every kind of file is equally likely, then every file of it."""
    files = files_of(base)
    by_kind: dict[str, list[str]] = {}
    for file in files:
        by_kind.setdefault(kind_of_file(file), []).append(file)
    file_kind = random.choice(sorted(by_kind))
    file = random.choice(by_kind[file_kind])
    kind = random.choices(KINDS, weights=(30, 6, 18, 8, 10, 12, 2, 9, 5))[0]
    return _draw_detail(random, base, kind, file, file_kind, by_kind[file_kind])


def _draw_detail(
    random: random.Random, base: Path, kind: str, file: str, file_kind: str, alike: list[str]
) -> Damage:
    size = (base / file).stat().st_size
    others = [one for one in alike if (base / one).read_bytes() != (base / file).read_bytes()]
    if (kind in ("swap", "copy") and not others) or (kind == "cut at a line" and not file.endswith(".jsonl")):
        kind = "flip"
    if kind.startswith(("flip", "cut")) and not size:
        kind = "append"
    if kind.startswith("flip"):
        return Damage(kind, file, file_kind, f"{random.randrange(size)} {random.randrange(1, 256)}")
    if kind == "cut":
        return Damage(kind, file, file_kind, str(random.randrange(size)))
    if kind == "cut at a line":
        content = (base / file).read_bytes()
        ends = [0] + [at + 1 for at, byte in enumerate(content) if byte == 10]
        return Damage(kind, file, file_kind, str(random.choice(ends[:-1])))
    if kind == "append":
        last_line = (base / file).read_bytes().splitlines(keepends=True)[-1:] or [b"x"]
        what = random.choice([b"\n", b"\0" * 4, random.randbytes(random.randrange(1, 40)), last_line[0]])
        return Damage(kind, file, file_kind, what.hex())
    if kind == "remove folder":
        folders = sorted(
            {str(parent) for parent in (base / file).relative_to(base).parents if str(parent) != "."}
        )
        return Damage(kind, random.choice(folders) if folders else file, file_kind, "")
    if kind in ("swap", "copy"):
        return Damage(kind, file, file_kind, "", random.choice(others))
    return Damage(kind, file, file_kind, "")


def apply_damage(trace: Path, damage: Damage) -> None:
    """Do it to a copy made by `copy_trace`."""
    path = trace / damage.file
    if damage.kind == "remove":
        path.unlink()
        return
    if damage.kind == "remove folder":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    content, before = path.read_bytes(), path.stat()
    if damage.kind.startswith("flip"):
        at, mask = (int(number) for number in damage.detail.split())
        content = content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
    elif damage.kind.startswith("cut"):
        content = content[: int(damage.detail)]
    elif damage.kind == "append":
        content += bytes.fromhex(damage.detail)
    else:
        other = (trace / damage.other).read_bytes()
        if damage.kind == "swap":
            _replace(trace / damage.other, content)
        content = other
    _replace(path, content)
    if damage.kind == "flip unseen":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)
