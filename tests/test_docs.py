"""The commands of README and docs, run: what a page shows is what they print."""

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


def shown_commands(page: str) -> Iterator[Shown]:
    text = (ROOT / page).read_text()
    for block in re.findall(r"^```\n\$ (.*?)^```$", text, re.MULTILINE | re.DOTALL):
        command, _, output = block.replace("\\\n", "").partition("\n")
        yield Shown(" ".join(command.split()), tuple(output.splitlines()))


FIRST, *QUESTIONS = shown_commands("docs/questions.md")
README_FIRST, *README_LATER = shown_commands("README.md")
CAPACITY = shown_commands("docs/capacity.md")
LATER = list(dict.fromkeys([*QUESTIONS, *README_LATER, *CAPACITY]))


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


def test_the_readme_starts_from_the_same_run() -> None:
    assert README_FIRST == FIRST
    assert len(README_LATER) == 2


@pytest.mark.parametrize("shown", LATER, ids=lambda shown: shown.command[:60])
def test_a_command_prints_what_the_page_shows(
    shown: Shown, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert shown.lines
    assert_shown(shown.lines, printed(shown.command))


def test_the_notebook_example_gives_what_the_guide_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    text = (ROOT / "docs/guide.md").read_text()
    (example,) = re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, "guide", "docs/guide.md", 0)
    assert len(test.examples) >= 5
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_question_from_a_to_f_has_a_command() -> None:
    text = (ROOT / "docs/questions.md").read_text()
    answers = re.split(r"^\*\*([A-Z])\. .*?\*\*", text, flags=re.MULTILINE)[1:]
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
