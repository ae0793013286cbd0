"""What a case is, and what is read off the tool's answers to compare with the right one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.commands.candidate_options import ReplayOptions, request_for
from kvtrace.errors import KVTraceError
from kvtrace.evaluation import replay
from kvtrace.findings.diagnose import diagnose
from kvtrace.report.scales.build import scales_report
from kvtrace.runs.open import open_run
from kvtrace.scales import load_artifact
from kvtrace.trace.reader import open_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Answer = dict[str, Any]

HARMLESS = ("bf16-rounding", "merged-kv", "short-calibration")
"""Notes about values that a case does not turn on."""


@dataclass(frozen=True)
class Case:
    """One report: what it is in real life, how it is asked, and the right answer."""

    name: str
    source: str
    """The public report that it is rebuilt from."""
    says: str
    """The right answer in words."""
    ask: Callable[[Path], Answer]
    """Builds the inputs in a directory and returns what the tool says of them."""
    right: Answer


def audited(
    path: Path, *rows: tuple[int, str], trace: Path | None = None, form: str | None = None, **options: Any
) -> Answer:
    """Return the findings (but for harmless notes), the layers of the table, and the rows asked for.

    A row is (shipped, engine, covered), four digits each; None: not there.
    """
    try:
        report = scales_report(load_artifact(path, form), open_trace(trace) if trace else None, **options)
    except KVTraceError as error:
        return {"refused": type(error).__name__, "text": str(error)}
    found = report.model_dump()
    by_place = {(row["layer"], row["tensor"]): row for row in reversed(found["scales"])}
    by_place |= {(row["layer"], "q"): row for row in found.get("q_scales", ())}
    return {
        "findings": [
            (one["severity"], one["id"], list(one["layers"]))
            for one in found["findings"]
            if not (one["severity"] == "note" and one["id"] in HARMLESS)
        ],
        "layers": sorted({row["layer"] for row in found["scales"]}),
        "tensors": "".join(sorted({row["tensor"] for row in found["scales"]})),
        "number_format": found["artifact"].get("number_format"),
        "other_modules": [
            (module["kind"], module["num_scales"]) for module in found.get("other_modules", ())
        ],
    } | {f"{layer} {tensor}": _shown(by_place.get((layer, tensor))) for layer, tensor in rows}


def _shown(row: dict[str, Any] | None) -> tuple[float | None, ...] | None:
    if row is None:
        return None
    return tuple(
        None if (value := row.get(field)) is None else float(f"{value:.4g}")
        for field in ("shipped_scale", "engine_scale", "covered_amax")
    )


def reported(trace: Path, scales: Iterable[Path] = ()) -> Answer:
    """Return what `kvtrace report` rests on: the verdict, its rule, its layers and what it advises."""
    try:
        request = request_for([trace], ReplayOptions(scales=list(scales)))
        run = replay(request, trace.parent / f"{trace.name}.run-{len(list(trace.parent.iterdir()))}")
    except KVTraceError as error:
        return {"refused": type(error).__name__, "text": str(error)}
    diagnosis = diagnose(open_run(run))
    first = diagnosis.verdict.finding
    named = None if first is None else diagnosis.findings[first]
    return {
        "status": diagnosis.verdict.status,
        "first": None if named is None or diagnosis.verdict.status == "sound" else named.id,
        "layers": [] if named is None else list(named.layers),
        "remedy": None if named is None else named.remedy,
        "action": None if named is None else named.action,
    }
