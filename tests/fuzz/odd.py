"""Odd values, and JSON with one of them in a random place, sealed anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

if TYPE_CHECKING:
    import random

ODD: Final = (
    0, 1, 2, 3, -1, -2, 7, 255, 256, 1 << 15, 1 << 16, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 10**12,
    2**53, 2**63 - 1, 2**63, 10**30, 0.0, -0.5, 0.5, 1e-300, 1e30, 1e308, "", "0", "NaN", "Infinity", "k",
    "9" * 5000, "\x1b[31m", "\u202e", "\u2028", "../../x", "/dev/zero", "\x00", None, True, False, [], {},
    [[]], [0, 0],
    [1.0] * 3, [[0, 10**12]], [-1, 2], {"a": 1},
)  # fmt: skip


def sealed(content: dict[str, Any]) -> str:
    """Return a record as JSON with the checksum of what it is now."""
    content.pop("crc32c", None)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps(content | {"crc32c": f"{google_crc32c.value(canonical.encode()):08x}"})


def changed(random: random.Random, content: Any) -> str:
    """Change one place of parsed JSON, in place, and return which: another value, one less, one twice."""
    places = list(_places(content, ""))
    parent, key, name = random.choice(places)
    what = random.choices(("value", "near", "gone", "twice"), weights=(6, 3, 2, 1))[0]
    if what == "gone":
        del parent[key]
    elif what == "twice" and isinstance(parent, list):
        parent.append(json.loads(json.dumps(parent[key])))
    elif what == "near" and type(parent[key]) in (int, float):
        parent[key] = random.choice((parent[key] + 1, parent[key] - 1, -parent[key], parent[key] * 2))
    else:
        parent[key] = json.loads(json.dumps(random.choice(ODD)))
    return f"{what} {name}"


def _places(content: Any, name: str) -> Any:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in list(items):
        yield content, key, f"{name}.{key}"
        if isinstance(value, (dict, list)) and value:
            # Of a long list the ends: every place of it is alike.
            few = value if isinstance(value, dict) or len(value) < 9 else value[:2]
            yield from ((p if p is not few else value, k, n) for p, k, n in _places(few, f"{name}.{key}"))
