"""Vega for the page: one script, made by vl-convert once and kept beside the user's other caches.

Making it takes seconds, and it is the same for every page (decision 32). What is kept is held to a digest; a
file that is damaged, cut or of another version is made anew. Where none can be kept it is made each time.
`python -m kvtrace.report.html.vega` makes it beforehand.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from kvtrace.files.regular import read_regular
from kvtrace.files.replaced import replace_file

_SNIPPET: Final = "window.vegaEmbed = vegaEmbed;"
_FIRST: Final = "// kvtrace made this with vl-convert; SHA-256 of what follows: "
_MOST_BYTES: Final = 20_000_000


@cache
def vega_script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, with Vega's expression interpreter, as one script."""
    import vl_convert

    kept = _kept_at(version("vl-convert-python"))
    script = None if kept is None else _read(kept)
    if script is None:
        script = vl_convert.javascript_bundle(_SNIPPET)
        if kept is not None:
            _keep(kept, script)
    # An HTML parser would end the script, or open a comment in it, at these.
    assert "</script" not in script.lower()
    assert "<!--" not in script
    return script


def _kept_at(made_by: str) -> Path | None:
    """Return the file of this version of vl-convert; None: there is no home directory."""
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(caches) if caches else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "kvtrace" / f"vega-{made_by}-{_digest(_SNIPPET)[:8]}.js"


def _read(file: Path) -> str | None:
    """Return what is kept there; None: nothing, or not what was written."""
    try:
        first, _, script = read_regular(file, _MOST_BYTES).decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return script if first == _FIRST + _digest(script) else None


def _keep(file: Path, script: str) -> None:
    """Keep it where that can be done."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, f"{_FIRST}{_digest(script)}\n{script}", mode=0o600)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    vega_script()
