"""What a run in progress keeps, so that a killed one goes on: private, and gone when the result is there."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from kvtrace.errors import InputError, OutputExistsError
from kvtrace.files.regular import read_regular
from kvtrace.files.replaced import replace_file
from kvtrace.files.strict_json import parse_strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORK: Final = "work"
RESULT_FILE: Final = "quality-run.json"
FACTS_FILE: Final = "engine.json"
"""What an engine said of itself, written before it answers."""
_JOB_FILE: Final = "job.json"
_RESULT: Final = "result"


class Work:
    """The folder of a run in progress: answers as text and tokens, which the result does not keep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, variant: str, name: str) -> Path:
        """Return where a variant keeps something."""
        return self.folder / variant / name

    def trim(self, variant: str) -> None:
        """Make the variant's folder, or cut the last lines that a killed job wrote in part."""
        (self.folder / variant).mkdir(mode=0o700, exist_ok=True)
        for name in ("answers.jsonl", "scores.jsonl"):
            path = self.file(variant, name)
            if path.exists():
                os.truncate(path, _whole_lines(path))

    def facts_if_complete(self, variant: str, num_prompts: int) -> dict[str, Any] | None:
        """Return what the engine said of itself, if it answered and scored all prompts; else None."""
        facts = self.file(variant, FACTS_FILE)
        files = [self.file(variant, name) for name in ("answers.jsonl", "scores.jsonl")]
        if not facts.exists() or any(sum(1 for _ in lines_of(one)) < num_prompts for one in files):
            return None
        found: dict[str, Any] = json.loads(facts.read_text(encoding="utf-8"))
        return found

    def remove(self) -> None:
        """Remove it all."""
        shutil.rmtree(self.folder)

    def new_result(self) -> Path:
        """Return a new folder for the files of the result, of which `publish` moves each at once."""
        result = self.folder / _RESULT
        shutil.rmtree(result, ignore_errors=True)
        result.mkdir(mode=0o700)
        return result

    def publish(self, out: Path) -> None:
        """Put the result in the place of what `out` had, and remove the work. Needs no space on the disk."""
        (out / RESULT_FILE).unlink(missing_ok=True)  # while it is not there, this run is not finished
        for old in out.iterdir():
            if old.is_dir() and not old.is_symlink():
                if old.name != WORK:
                    shutil.rmtree(old)
            else:
                old.unlink()
        made = self.folder / _RESULT
        for path in sorted(made.iterdir(), key=lambda path: path.name == RESULT_FILE):
            path.rename(out / path.name)
        self.remove()


def open_work(out: Path, job: dict[str, Any], *, overwrite: bool) -> Work:
    """Return the work of a new run in `out`, or of the same one that was interrupted there.

    job: what must be the same for a run to go on. overwrite: whether another run there gives way; one that
    is finished does so when the new one is.
    Raises OutputExistsError: `out` has a finished run, another one in progress, or something else.
    """
    work = out / WORK
    if os.path.lexists(out) and not out.is_dir():
        raise OutputExistsError(f"{out}: is not a folder; give another name")
    if (work / _JOB_FILE).is_file():
        if _job(work) == job:
            return Work(work)
        if not overwrite:
            raise OutputExistsError(
                f"{out}: holds the work of a run with other prompts, variants or settings; "
                "give another name, or --force to begin anew"
            )
        shutil.rmtree(work)
    elif (out / RESULT_FILE).is_file():
        if not overwrite:
            raise OutputExistsError(f"{out}: exists; give another name, or --force to overwrite it")
    elif out.is_dir() and any(out.iterdir()):
        raise OutputExistsError(f"{out}: exists and is not a run of kvtrace quality; give another name")
    try:
        work.mkdir(parents=True, mode=0o700)
        replace_file(work / _JOB_FILE, json.dumps(job, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from error
    return Work(work)


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file that a job wrote; none where there is no file."""
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def _job(work: Path) -> Any:
    try:
        return parse_strict_json(read_regular(work / _JOB_FILE))
    except (OSError, ValueError):
        return None


def _whole_lines(path: Path) -> int:
    """Return how many bytes end in a line's end."""
    content_end = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                content_end += len(line)
    return content_end
