"""What a page of the report says: its data, its text and its queries, without scripts, styles and hashes."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np

_SILENT = ("script", "style", "title")
_SAID = ("aria-label", "alt", "placeholder", "href", "data-query", "data-parameters")


def page_parts(content: str) -> dict[str, Any]:
    """Return `data`, the JSON that the charts draw with arrays unpacked, and the texts `visible` and `sql`.

    >>> data = '<script type="application/json">{"x": 1}</script>'
    >>> parts = page_parts(f"<p>a <b>b</b></p><pre>SELECT 1</pre>{data}<script>run()</script>")
    >>> parts["visible"], parts["sql"], parts["data"]
    ('a\\nb\\n', 'SELECT 1\\n', [{'x': 1}])
    """
    parser = _Parser()
    parser.feed(content)
    parser.close()
    return {
        "data": [_unpacked(json.loads(one)) for one in parser.documents],
        "visible": "".join(f"{line}\n" for line in parser.visible),
        "sql": "".join(f"{line}\n" for line in parser.code),
    }


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.documents: list[str] = []
        self.visible: list[str] = []
        self.code: list[str] = []
        self._open: list[str] = []
        self._in_json = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.visible += [f"{name}={given[name]}" for name in _SAID if given.get(name)]
        if tag in (*_SILENT, "pre"):
            self._open.append(tag)
        if tag == "script" and given.get("type") == "application/json":
            self._in_json = True
            self.documents.append("")

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        self._in_json = False

    def handle_data(self, data: str) -> None:
        if self._in_json:
            self.documents[-1] += data
        elif self._open and self._open[-1] in ("script", "style"):
            return
        elif self._open and self._open[-1] == "pre":
            self.code += data.splitlines()
        elif text := " ".join(data.split()):
            self.visible.append(text)


_TYPES = {"f8": "<f8", "u2": "<u2", "log": "<u2", "even": "<u2"}


def _unpacked(value: Any) -> Any:
    """Return the value with every packed array as the numbers that are in it, whichever level packed them."""
    if isinstance(value, list):
        return [_unpacked(one) for one in value]
    if not isinstance(value, dict):
        return value
    if {"kind", "shape", "data"} <= value.keys():
        raw = zlib.decompress(base64.b64decode(value["data"]))
        numbers = np.frombuffer(raw, _TYPES[value["kind"]]).tolist()
        return value | {"data": [None if one != one else one for one in numbers]}
    return {name: _unpacked(one) for name, one in value.items()}
