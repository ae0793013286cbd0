"""The sheet that a person on call follows back to the baseline: limit, drain deadline, manifest, command."""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.files.regular import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.capacity.report import CapacityReport

_NAMED: Final = ("bfloat16", "float16")


def rollback_sheet(
    report: CapacityReport, candidate: str, *, model: str, drain_s: int, manifest: Path | None
) -> str:
    """Return the sheet in Markdown.

    model: as `vllm serve` gets it. drain_s: seconds that requests have to end. manifest: the baseline's,
    which is named with its SHA-256. Raises InputError: it cannot be read.
    """
    return "\n".join(_lines(report, candidate, model, drain_s, manifest)) + "\n"


def _lines(
    report: CapacityReport, candidate: str, model: str, drain_s: int, manifest: Path | None
) -> Iterator[str]:
    back = report.rollback
    assert back is not None
    assert report.serving is not None
    yield f"# Back from {candidate} to {back.baseline}: {model}"
    yield ""
    if back.fits:
        yield f"1. **Limit.** {back.limit:,} requests at a time still fit ({back.basis} case); leave it."
    elif back.limit_to_set < 1:
        yield (
            f"1. **Limit.** No request fits the baseline's cache ({back.basis} case): give it more memory, "
            "or a shorter --max-model-len, before going back."
        )
    else:
        yield (
            f"1. **Limit.** Lower admission from {back.limit:,} to **{back.limit_to_set:,}** requests at a "
            f"time ({back.basis} case) before the larger cache is restored."
        )
    yield (
        f"2. **Drain.** Send no new requests to the replica, and give those that run **{drain_s:,} s** to "
        "end. What still runs then is aborted and counts as failed."
    )
    if manifest is None:
        yield "3. **Manifest.** None was given; note which weights, scales and settings the baseline has."
    else:
        yield f"3. **Manifest.** `{manifest}`, sha256 `{_digest(manifest)}`: compare before the start."
    yield "4. **Command.** The cache dtype is fixed when an engine starts, so start it anew:"
    yield ""
    yield "   ```"
    yield f"   {_command(report, model, min(back.limit, back.limit_to_set))}"
    yield "   ```"
    yield ""
    yield "While replicas of both run, count each one's capacity by its own cache."


def _command(report: CapacityReport, model: str, limit: int) -> str:
    serving = report.serving
    assert serving is not None
    words = ["vllm", "serve", model]
    dtype = report.model.dtype if report.model else None
    if dtype in _NAMED:  # by name: the default is FP8 where a checkpoint declares it
        words += ["--kv-cache-dtype", dtype]
    words += ["--max-num-seqs", str(limit), "--max-model-len", str(serving.max_model_len)]
    if serving.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(serving.tensor_parallel)]
    return shlex.join(words)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected the baseline's manifest"
        ) from error
