"""The README's commands, run: what it shows is what they print."""

from __future__ import annotations

import doctest
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.run_cli import kvtrace

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
ELIDED = "…"


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of the README and the lines shown below it."""

    command: str
    lines: tuple[str, ...]


def shown_commands() -> Iterator[Shown]:
    text = (ROOT / "README.md").read_text()
    for block in re.findall(r"^```\n\$ (.*?)^```$", text, re.MULTILINE | re.DOTALL):
        command, _, output = block.replace("\\\n", "").partition("\n")
        yield Shown(" ".join(command.split()), tuple(output.splitlines()))


FIRST, *LATER = shown_commands()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the samples and the run that the first command makes."""
    path = tmp_path_factory.mktemp("readme")
    (path / "samples").symlink_to(ROOT / "samples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        made = printed(FIRST.command)
    assert_shown(FIRST.lines, made)
    return path


def printed(command: str) -> list[str]:
    program, *arguments = shlex.split(command)
    assert program == "kvtrace"
    result = kvtrace(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def assert_shown(excerpt: tuple[str, ...], lines: list[str]) -> None:
    """Assert that the excerpt is the output, cut at the right, but for lines where it says `…`.

    A line that is blank after the cut, such as a table's upper header, may be left out of the excerpt.
    """
    width = max(map(len, excerpt))
    cut = [line[:width].rstrip() for line in lines]
    rest = iter(line for line in cut if line)
    skipping = False
    for expected in excerpt:
        if expected == ELIDED:
            skipping = True
            continue
        found = next(rest, None)
        while skipping and found is not None and found != expected:
            found = next(rest, None)
        assert found == expected
        skipping = False
    assert skipping or next(rest, None) is None, "the output goes on; the README does not say so"


@pytest.mark.parametrize("shown", LATER, ids=lambda shown: shown.command[:60])
def test_a_command_prints_what_the_readme_shows(
    shown: Shown, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert shown.lines
    assert_shown(shown.lines, printed(shown.command))


def test_the_notebook_example_gives_what_the_readme_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, "README", "README.md", 0)
    assert len(test.examples) >= 5
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_question_from_a_to_f_has_a_command() -> None:
    text = (ROOT / "README.md").read_text()
    section = text.partition("## Questions, and the command that answers each")[2].partition("\n## ")[0]
    answers = re.split(r"^\*\*([A-Z])\. .*?\*\*", section, flags=re.MULTILINE)[1:]
    assert answers[::2] == list("ABCDEF")
    assert all("\n$ kvtrace " in answer for answer in answers[1::2])


@pytest.mark.parametrize(
    ("excerpt", "lines"),
    [
        (("a  1", "b  2"), ["a  1  x", "b  3  x"]),
        (("a", "c"), ["a", "b", "c"]),
        (("a",), ["a", "b"]),
        (("a", ELIDED, "c"), ["a", "b"]),
    ],
)
def test_an_excerpt_that_is_not_the_output_is_noticed(excerpt: tuple[str, ...], lines: list[str]) -> None:
    with pytest.raises(AssertionError):
        assert_shown(excerpt, lines)
