"""JSON that two readers could read differently is refused."""

from __future__ import annotations

import pytest

from kvtrace.files.strict_json import parse_strict_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": {"b": 1, "b": 1}}', "the same key twice"),
        (b"[NaN]", "NaN is not a JSON number"),
        (b"[-Infinity]", "-Infinity is not a JSON number"),
        (b'["\xff"]', "can't decode byte"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b"[1, 2", "Expecting"),
        (b"1" * 5000, "Exceeds the limit"),
    ],
)
def test_each_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_strict_json(text)


def test_sound_json_is_itself_and_pythons_constants_are_taken_where_asked_for() -> None:
    assert parse_strict_json(b'{"a": [1, 2.5, null, "\\ud83d\\ude00"]}') == {"a": [1, 2.5, None, "😀"]}
    assert parse_strict_json(b"[Infinity]", constants=True) == [float("inf")]
