"""Whether an evaluation asks what scales were calibrated on: such answers flatter the scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.calibration.manifest import PROMPT_DIGITS, parse_manifest
from kvtrace.errors import OutcomesError
from kvtrace.figures import count
from kvtrace.outcomes.strict_files import json_document, located
from kvtrace.quality.comparison import Leakage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvtrace.outcomes.table import OutcomeTable
    from kvtrace.quality.pairs import Answers, PairKey

MANIFEST_FILE: Final = "kvtrace.json"


def check_leakage(
    artifact: Path,
    answers: Answers,
    table: OutcomeTable,
    traced: Mapping[PairKey, Sequence[str]],
) -> Leakage:
    """Return what can be said of the prompts that `artifact` was calibrated on and those of the answers.

    artifact: a directory with kvtrace.json, or that file. traced: keyed prompt hashes of the answers'
    requests in a trace, which stand for answers whose file has no token ids. Raises OutcomesError: there is
    no manifest, or some prompts are in both; the text says how many.
    """
    file = artifact / MANIFEST_FILE if artifact.is_dir() else artifact
    manifest = parse_manifest(json_document(file))
    with located(file):
        if manifest is None:
            raise ValueError("cannot be read as a manifest of kvtrace calibrate; expected its kvtrace.json")
    known = manifest.dataset.prompts
    if known is None:
        return _unknown(artifact, "no-hashes", "the manifest has no hashes of its prompts", len(answers))
    if not table.key_is_shared or table.key != known.key_id:
        return _unknown(
            artifact, "other-key", "prompts were hashed under another key; give the same --key", len(answers)
        )
    hashes, shared, num_unknown = set(known.hashes), 0, 0
    for key, row in answers.items():
        own = (row.prompt_hash,) if row.prompt_hash else tuple(traced.get(key, ()))
        num_unknown += not own
        shared += any(one[:PROMPT_DIGITS] in hashes for one in own)
    if shared:
        raise OutcomesError(
            f"{file}: {shared:,} of {count(len(answers), 'answer')} are to prompts that it was "
            "calibrated on; evaluate on others, or calibrate without them"
        )
    if num_unknown or known.num_without_hash:
        what = (
            f"{count(num_unknown, 'answer')} and {count(known.num_without_hash, 'calibrated request')} "
            "have no prompt hash"
        )
        return _unknown(artifact, "some-without-hash", what, num_unknown)
    return Leakage(
        artifact=str(artifact),
        state="no shared prompt",
        reason_id="compared",
        reason=f"{count(len(hashes), 'prompt')} were calibrated on, none of them is evaluated",
        num_answers_unknown=0,
    )


def _unknown(artifact: Path, reason_id: str, reason: str, num_unknown: int) -> Leakage:
    return Leakage(
        artifact=str(artifact),
        state="unknown",
        reason_id=reason_id,
        reason=reason,
        num_answers_unknown=num_unknown,
    )
