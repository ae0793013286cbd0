"""Commands as a terminal shows them: in lines that can be copied."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvtrace.report.wording import WIDTH, columns

if TYPE_CHECKING:
    from collections.abc import Iterator


def command_lines(command: str | None, indent: str) -> Iterator[str]:
    """Yield the command in lines that can be copied: broken between words alone, however long these are."""
    line = ""
    for word in _words(command or ""):
        if line and columns(f"{indent}{line} {word} \\") > WIDTH:
            yield f"{indent}{line} \\"
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield indent + line


def _words(command: str) -> list[str]:
    """Return the words with their quotes; an option and its value stay together."""
    words: list[str] = []
    for word in shlex.split(command):
        if words and words[-1].startswith("-") and not word.startswith("-") and " " not in words[-1]:
            words[-1] += f" {shlex.quote(word)}"
        else:
            words.append(shlex.quote(word))
    return words
