from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtrace.errors import IntegrityError
from kvtrace.findings.run.stored_evidence import stored_evidence


class Sent:
    path = Path("sent.run")


def evidence_of(text: str, severity: str = "error") -> dict[str, Any]:
    row = {"id": "kv-swapped", "severity": severity, "evidence": text}
    return stored_evidence(row, Sent())  # type: ignore[arg-type]


def test_a_severity_that_there_is_not_is_refused() -> None:
    with pytest.raises(IntegrityError, match="no audit wrote the severity of kv-swapped"):
        evidence_of("{}", "fatal")


def test_evidence_that_an_audit_wrote_is_read_as_it_is() -> None:
    text = '{"tensors": ["k", "v"], "against": "other", "ratio": 1.5, "none": "Infinity"}'
    assert evidence_of(text) == {
        "tensors": ["k", "v"],
        "against": "other",
        "ratio": 1.5,
        "none": "Infinity",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "9" * 5000,
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        '{"tensors": 3}',
        '{"tensors": [["k"]]}',
        '{"tensors": ["q"]}',
        '{"against": 1}',
        '{"a": "\\ud800"}',
    ],
)
def test_evidence_of_another_kind_is_refused_with_the_file_and_the_finding(text: str) -> None:
    with pytest.raises(IntegrityError, match=r"sent.run: findings.parquet: .*kv-swapped"):
        evidence_of(text)
