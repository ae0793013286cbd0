"""A command that both sides run, and a case: commands that share a folder."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Command:
    """`python -m kvtrace ARGUMENTS`, run in the case's folder."""

    name: str
    arguments: str
    """As a shell takes them."""
    reads: Literal["text", "json", "csv"] = "text"
    """How its stdout is compared."""
    makes: tuple[str, ...] = ()
    """Files, or folders of files, that are compared too."""
    columns: int = 80

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.arguments)


@dataclass(frozen=True)
class Case:
    """Commands that run in this order, in a folder that starts as a copy of the inputs of the case's name."""

    name: str
    commands: tuple[Command, ...]

    def only(self, patterns: Sequence[str]) -> Case:
        """Return the case with the commands whose outputs may match, and those that make what these read.

        >>> runs = replay("replay", "t.kvtrace"), replay("other", "t.kvtrace", "o")
        >>> case = Case("a", (*runs, Command("report", "report run")))
        >>> [one.name for one in case.only(["a/report"]).commands], case.only(["b/"]).commands
        (['replay', 'report'], ())
        """
        chosen = [one for one in self.commands if _may_match(f"{self.name}/{one.name}", patterns)]
        read = {argument for one in chosen for argument in one.argv}
        kept = [one for one in self.commands if one in chosen or read.intersection(one.makes)]
        return Case(self.name, tuple(kept))


def matches(output: str, patterns: Sequence[str]) -> bool:
    """Whether an output's name holds one of the patterns, or there is none."""
    return not patterns or any(fnmatch(output, f"*{one}*") for one in patterns)


def both(name: str, arguments: str) -> tuple[Command, Command]:
    """Return a command that prints for people, and the same as JSON."""
    return Command(name, arguments), Command(f"{name}-json", f"{arguments} --json", "json")


def replay(name: str, arguments: str, run: str = "run") -> Command:
    """Return a command that makes a run, which is compared table by table."""
    return Command(name, f"replay {arguments} -o {run}", makes=(run,))


def _may_match(command: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern is about a command, or about a file that it makes."""
    return matches(command, patterns) or any(one.startswith(f"{command}/") for one in patterns)
