"""Evidence of an audit's findings, as a run stores it: whoever sent the run may have written another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kvtrace.errors import IntegrityError
from kvtrace.files.strict_json import parse_strict_json
from kvtrace.findings.finding import SEVERITIES, TENSORS
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.runs.open import Run


def stored_evidence(row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Return the evidence of a row of findings.parquet.

    Raises IntegrityError: it is none that an audit writes, or the severity is not.
    """
    try:
        found = parse_strict_json((row["evidence"] or "").encode(), constants=True)
    except (ValueError, RecursionError):
        found = None
    wrong = "evidence" if not isinstance(found, dict) or not _has_sound_types(found) else None
    if row["severity"] not in SEVERITIES:
        wrong = "severity"
    if wrong is not None:
        raise IntegrityError(
            f"{run.path}: findings.parquet: no audit wrote the {wrong} of {plain(row['id'], 40)}. "
            "Run kvtrace replay again"
        )
    return cast("dict[str, Any]", found)


def _has_sound_types(evidence: Mapping[str, Any]) -> bool:
    against, tensors = evidence.get("against"), evidence.get("tensors")
    return isinstance(against, str | None) and (
        tensors is None or (isinstance(tensors, list) and all(one in TENSORS for one in tensors))
    )
