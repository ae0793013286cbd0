"""Run a case's commands on one side, and keep what each printed and wrote."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from same_as.parts import file_parts, made_files, printed_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from same_as.commands import Case, Command
    from same_as.parts import Parts
    from same_as.side import Side


@dataclass(frozen=True)
class Output:
    """What a command printed, or a file that it wrote. Kept as bytes: parts are made where bytes differ."""

    name: str
    side: Side
    command: Command
    ended: int | None
    """The exit code; None: this is a file."""
    content: tuple[bytes, bytes]
    """stdout and stderr; or the file, and nothing."""

    def same_bytes(self, other: Output) -> bool:
        """Whether nothing differs at all."""
        mine, others = ((one.ended, *map(one.side.plain, one.content)) for one in (self, other))
        return mine == others

    def parts(self) -> Parts:
        """Return what it says; a file that cannot be read is a part of its own."""
        if self.ended is not None:
            return printed_parts(self.command, self.ended, *self.content, self.side)
        try:
            return file_parts(self.name, self.content[0], self.side)
        except ValueError as error:
            return {"unreadable": f"{error}\n"}


def case_outputs(side: Side, case: Case, inputs: Path, *, keep: bool) -> Iterator[Output]:
    """Run the commands in a copy of the case's inputs, and yield what each printed and wrote.

    Files are named after the command that makes them: `sample/replay/run/cells.parquet`.
    """
    folder = side.work / case.name
    if (inputs / case.name).is_dir():
        shutil.copytree(inputs / case.name, folder)
    else:
        folder.mkdir(parents=True)
    for command in case.commands:
        name = f"{case.name}/{command.name}"
        ended = side.run(command.argv, folder, command.columns)
        yield Output(name, side, command, ended["exit"], (ended["stdout"], ended["stderr"]))
        for file, path in made_files(command, folder):
            yield Output(f"{name}/{file}", side, command, None, (path.read_bytes(), b""))
    if not keep:
        shutil.rmtree(folder)
