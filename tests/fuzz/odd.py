"""Odd values, and JSON with one of them in a random place, sealed anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

if TYPE_CHECKING:
    import random
    from pathlib import Path

ODD: Final = (
    0, 1, 2, 3, -1, -2, 7, 255, 256, 1 << 15, 1 << 16, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 10**12,
    2**53, 2**63 - 1, 2**63, 10**30, 0.0, -0.5, 0.5, 1e-300, 1e30, 1e308, "", "0", "NaN", "Infinity", "k",
    "9" * 5000, "\x1b[31m", "\u202e", "\u2028", "../../x", "/dev/zero", "\x00", None, True, False, [], {},
    [[]], [0, 0],
    [1.0] * 3, [[0, 10**12]], [-1, 2], {"a": 1},
)  # fmt: skip
RAW: Final = (
    "NaN", "-Infinity", "9" * 5000, "1e999", '"\\ud800"', "[" * 5000 + "]" * 5000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    "[" + "[]," * 100_000 + "1]", '{"a": 1, "a": 2}', "", "\x00", "\ufeff1",
)  # fmt: skip
"""What no `json.dumps` writes, or writes so deeply or often."""
_PLACEHOLDER: Final = "put raw text here"


def sealed(content: dict[str, Any]) -> str:
    """Return a record as JSON with the checksum of what it is now."""
    content.pop("crc32c", None)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps(content | {"crc32c": f"{google_crc32c.value(canonical.encode()):08x}"})


def changed(random: random.Random, content: Any) -> None:
    """Change one place of parsed JSON: another value, one less, one twice."""
    parent, key = random.choice(list(_places(content)))
    what = random.choices(("value", "near", "gone", "twice"), weights=(6, 3, 2, 1))[0]
    if what == "gone":
        del parent[key]
    elif what == "twice" and isinstance(parent, list):
        parent.append(json.loads(json.dumps(parent[key])))
    elif what == "near" and type(parent[key]) in (int, float):
        parent[key] = random.choice((parent[key] + 1, parent[key] - 1, -parent[key], parent[key] * 2))
    else:
        parent[key] = json.loads(json.dumps(random.choice(ODD)))


def odd_json(random: random.Random, content: Any) -> str:
    """Return JSON of a changed copy; at times with text in it that is none, or that no writer would write."""
    content = json.loads(json.dumps(content))
    changed(random, content)
    if random.random() < 0.8 or not (places := list(_places(content))):
        return json.dumps(content)
    parent, key = random.choice(places)
    parent[key] = _PLACEHOLDER
    return json.dumps(content).replace(f'"{_PLACEHOLDER}"', random.choice(RAW))


def replace(path: Path, content: str | bytes) -> None:
    """Write a file anew: the one that is there may be a hard link to the base's."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _places(content: Any) -> Any:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(items):
        yield content, key
        if isinstance(value, dict) or (isinstance(value, list) and len(value) < 9):
            yield from _places(value)
        elif isinstance(value, list):
            # Of a long list the beginning: every place of it is alike.
            yield from ((value, 0), (value, len(value) - 1))
            yield from (place for one in value[:2] if isinstance(one, (dict, list)) for place in _places(one))
