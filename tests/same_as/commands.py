"""A command that both sides run, and a case: commands that share a folder."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Literal


@dataclass(frozen=True)
class Command:
    """`python -m kvtrace ARGUMENTS`, run in the case's folder."""

    name: str
    arguments: str
    """As a shell takes them."""
    reads: Literal["text", "json"] = "text"
    """How its stdout is compared."""
    makes: tuple[str, ...] = ()
    """Files, or folders of files, that are compared too."""
    columns: int = 80
    is_needed: bool = False
    """Whether others of the case use what it makes; then `--only` never leaves it out."""

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.arguments)


@dataclass(frozen=True)
class Case:
    """Commands that run in this order, in a folder that starts as a copy of the inputs of the case's name."""

    name: str
    commands: tuple[Command, ...]

    def only(self, pattern: str) -> Case:
        """Return the case with the commands whose outputs may match, and what those need.

        >>> made, shown = replay("replay", "t.kvtrace"), Command("report", "report run")
        >>> [one.name for one in Case("a", (made, shown)).only("a/report").commands]
        ['replay', 'report']
        >>> Case("a", (made, shown)).only("b/").commands
        ()
        """
        chosen = {one.name for one in self.commands if _may_match(f"{self.name}/{one.name}", pattern)}
        kept = [one for one in self.commands if chosen and (one.is_needed or one.name in chosen)]
        return Case(self.name, tuple(kept))


def both(name: str, arguments: str) -> tuple[Command, Command]:
    """Return a command that prints for people, and the same as JSON."""
    return Command(name, arguments), Command(f"{name}-json", f"{arguments} --json", "json")


def replay(name: str, arguments: str, run: str = "run") -> Command:
    """Return a command that makes a run, which is compared table by table."""
    return Command(name, f"replay {arguments} -o {run}", makes=(run,), is_needed=True)


def _may_match(command: str, pattern: str) -> bool:
    """Whether the pattern is about a command, or about a file that it makes."""
    return fnmatch(command, f"*{pattern}*") or pattern.startswith(f"{command}/")
