"""Audit a trace, calibrate on it, and write a checkpoint that can be served: the guided path."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.calibration.calibrate import calibrate
from kvtrace.calibration.dataset import DatasetRules
from kvtrace.calibration.recipe import Recipe
from kvtrace.calibration.saturated import saturation
from kvtrace.calibration.write import check_target, write_calibration
from kvtrace.findings.diagnose import diagnose_case
from kvtrace.findings.remedies import is_mended_by_scales, scales_for
from kvtrace.findings.run.case import Case
from kvtrace.mend.model import MEND_SCHEMA_VERSION, Audited, Mended, Written
from kvtrace.report.answer.told import Told
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.remedies.new_scales import NewScales
    from kvtrace.runs.open import Run
    from kvtrace.trace.reader import Trace


def mend(
    run: Run,
    trace: Trace,
    checkpoint: Path,
    output: Path,
    *,
    headroom: float | None = None,
    is_audited: bool = True,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Mended:
    """Write a copy of `checkpoint` with scales of the trace to `output`, unless what ran is sound.

    run: the trace's replay. headroom: None: as reports advise. is_audited: whether the run holds the
    checkpoint's own scales beside those that ran.
    Nothing is written either where something else is wrong than what scales can mend.
    Raises OutputExistsError: `output` exists. InputError: the checkpoint is not the traced model's, or takes
    no scales; the trace lacks layers.
    """
    case = Case(run)
    told = Told(case, diagnose_case(case))
    given = ["--scales", str(checkpoint)] if is_audited else []
    first = told.first
    audited = Audited(
        command=shlex.join(["kvtrace", "report", str(trace.path), *given]),
        state=told.state,
        headline=told.headline,
        finding=first.id if first else None,
        action=first.action if first else "",
    )
    subject = told.subject
    if subject is None or not is_mended_by_scales(subject, first):
        return Mended(MEND_SCHEMA_VERSION, __version__, str(trace.path), audited, None, ())
    scales = replace(scales_for(case, subject, first), checkpoint=str(checkpoint), output=str(output))
    if headroom is not None:
        scales = replace(scales, headroom=headroom)
    written = _write(scales, trace, checkpoint, output, progress)
    return Mended(MEND_SCHEMA_VERSION, __version__, str(trace.path), audited, written, scales.after())


def _write(
    scales: NewScales,
    trace: Trace,
    checkpoint: Path,
    output: Path,
    progress: Callable[[int, int], None],
) -> Written:
    check_target(output, checkpoint, trace.record.model, scales.granularity)
    recipe = Recipe(headroom=scales.headroom, granularity=scales.granularity)
    made = calibrate([trace], recipe, DatasetRules(), progress)
    saved = write_calibration(output, made, checkpoint=checkpoint)
    assert saved is not None
    clipped = saturation(made.traces, made.calibrated)
    return Written(
        command=scales.calibrate_command,
        path=str(output),
        granularity=scales.granularity,
        headroom=scales.headroom,
        num_scales=sum(map(len, made.scales.values())),
        num_linked=saved.num_linked,
        copied=saved.copied,
        warning=clipped.text(made.model.dtype) if clipped else None,
    )
