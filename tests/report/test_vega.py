"""The script of the charts is made once, kept, and never taken from a file that is not what was written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import vl_convert

from kvtrace.report.html.vega import vega_script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SCRIPT = "window.vegaEmbed = 'häufig';\r\nlast()"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What vl-convert was asked for, which would take seconds each time; kept in a home of the test's own."""
    asked: list[str] = []

    def bundle(snippet: str) -> str:
        asked.append(snippet)
        return SCRIPT

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    vega_script.cache_clear()
    yield asked
    vega_script.cache_clear()


def again() -> str:
    """Return what the next process would."""
    vega_script.cache_clear()
    return vega_script()


def kept(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "caches" / "kvtrace").iterdir()
    return file


def test_the_script_is_made_once_and_kept_for_the_user_alone(made: list[str], tmp_path: Path) -> None:
    assert vega_script() == SCRIPT
    assert again() == SCRIPT
    assert made == ["window.vegaEmbed = vegaEmbed;"]
    assert kept(tmp_path).stat().st_mode & 0o077 == 0


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"last", b"lost"))


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")


def other_digest(file: Path) -> None:
    file.write_bytes(b"f" * 64 + file.read_bytes())


@pytest.mark.parametrize("damage", [cut_short, changed, emptied, no_text, other_digest])
def test_a_damaged_file_is_made_anew_and_mended(
    made: list[str], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    vega_script()
    sound = kept(tmp_path).read_bytes()
    damage(kept(tmp_path))
    assert again() == SCRIPT
    assert len(made) == 2
    assert kept(tmp_path).read_bytes() == sound


def test_another_version_of_vl_convert_makes_its_own(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vega_script()
    monkeypatch.setattr("kvtrace.report.html.vega.version", lambda _: "99.0.0")
    again()
    assert len(made) == 2
    assert len(list((tmp_path / "caches" / "kvtrace").iterdir())) == 2


def test_what_is_no_regular_file_is_not_waited_for(made: list[str], tmp_path: Path) -> None:
    vega_script()
    file = kept(tmp_path)
    file.unlink()
    file.mkdir()
    assert again() == SCRIPT
    file.rmdir()
    os.mkfifo(file)
    assert again() == SCRIPT
    assert len(made) == 3


def test_without_a_place_to_keep_it_the_script_is_made_each_time(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "caches").write_text("a file where the folder would be")
    assert vega_script() == SCRIPT
    assert again() == SCRIPT
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr("pathlib.Path.home", _homeless)
    assert again() == SCRIPT
    assert len(made) == 3


def _homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")
