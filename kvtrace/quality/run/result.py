"""What is left of a run: outcomes, scores, a capture, and what was run. No prompt and no answer."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvtrace.capture.options import CaptureOptions
from kvtrace.capture.run import OfflineRun, capture_offline
from kvtrace.errors import InputError
from kvtrace.files.key_file import load_or_make_key
from kvtrace.files.replaced import replace_file
from kvtrace.fixture.answers import judged
from kvtrace.outcomes.collect import Key, collect_outcomes
from kvtrace.outcomes.source import Choices, Source
from kvtrace.quality.run.run import LOG_FILE, Interrupted
from kvtrace.quality.run.score_table import SCORES_FILE, write_scores
from kvtrace.quality.run.work import RESULT_FILE, lines_of
from kvtrace.trace.capture_names import KEY_FILE
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    from kvtrace.quality.run.run import Bar, QualityRun, VariantRun
    from kvtrace.quality.run.work import Work

OUTCOMES_FILE: Final = "answers.outcomes"
TRACE_FILE: Final = "bf16.kvtrace"


@dataclass(slots=True)
class RunResult:
    """What a run left in its folder."""

    variants: list[VariantRun]
    passed: dict[str, Counter[str]] = field(default_factory=dict)
    """Variant → outcome → answers; empty where nothing was judged."""
    num_scores: int = 0
    differs: dict[str, list[str]] = field(default_factory=dict)
    """Variant → what differs from the baseline besides the cache: then it is a comparison of bundles."""


def capture_baseline(run: QualityRun, work: Work, python: Path, bar: Bar) -> Interrupted | None:
    """Capture all prompts under the baseline, if the run asks for it and it was not done.

    Raises CaptureError: vLLM failed.
    """
    trace = work.folder / TRACE_FILE
    if run.capture is None or trace.exists():
        return None
    options = CaptureOptions(work.folder, hash_key_file=key_file(run, work), **run.capture)
    baseline = run.variants[0]
    offline = OfflineRun(
        baseline.model or run.model,
        run.prompts,
        {**run.engine, **baseline.engine()},
        max_tokens=run.max_tokens,
    )
    with bar("capture") as progress:
        made = capture_offline(offline, options, python, trace, progress, overwrite=True)
    return Interrupted("capture", made.num_done, len(run.prompts)) if made.is_interrupted else None


def write_result(run: QualityRun, work: Work, variants: list[VariantRun], out: Path) -> RunResult:
    """Write outcomes, scores and what was run into `out` when all of it is made, and remove the work.

    What `out` had before goes then. Raises InputError: a file cannot be written; the work stays.
    """
    result = RunResult(variants)
    valid = [one.name for one in variants if one.invalid is None]
    try:
        made = work.new_result()
        key = Key(load_or_make_key(key_file(run, work)), is_shared=True)
        result.num_scores = write_scores(work, valid[0], valid[1:], made / SCORES_FILE)
        if run.cases is not None:
            sources = [_judged(run, work, name) for name in valid]
            collected = collect_outcomes(sources, made / OUTCOMES_FILE, key)
            result.passed = collected.by_variant
        result.differs = {one.name: found for one in variants[1:] if (found := _differs(variants[0], one))}
        replace_file(made / RESULT_FILE, json.dumps(_described(run, result), indent=2) + "\n")
        for one in variants:
            if one.invalid is not None:
                shutil.copyfile(work.file(one.name, LOG_FILE), made / f"{one.name}.log")
        for name in (KEY_FILE, TRACE_FILE):
            if (work.folder / name).exists():
                (work.folder / name).rename(made / name)
        work.publish(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from error
    except ValueError as error:  # the key
        raise InputError(str(error)) from error
    return result


def key_file(run: QualityRun, work: Work) -> Path:
    """Return where the key of all hashes is while a run goes on: as given, or one of the run's own."""
    return run.key or work.folder / KEY_FILE


def _judged(run: QualityRun, work: Work, variant: str) -> Source:
    assert run.cases is not None
    path = work.file(variant, "outcomes.jsonl")
    with path.open("w", encoding="utf-8") as file:
        for line in lines_of(work.file(variant, "answers.jsonl")):
            found = judged(run.cases[line["id"]], line["id"], line["answer"], failed="", variant=variant)
            kept = {key: line[key] for key in ("output_tokens", "prompt_token_ids")}
            file.write(json.dumps(found | kept, ensure_ascii=False) + "\n")
    return Source(path, variant, Choices())


def _differs(baseline: VariantRun, other: VariantRun) -> list[str]:
    if other.invalid is not None:
        return []
    return [
        *(["weights"] if baseline.weights != other.weights else []),
        *(["backends"] if baseline.engine.get("backends") != other.engine.get("backends") else []),
        *(["dtype"] if baseline.engine.get("dtype") != other.engine.get("dtype") else []),
    ]


def _described(run: QualityRun, result: RunResult) -> dict[str, Any]:
    return {
        **run.job(),
        "kvtrace_version": __version__,
        "variants": [
            {
                **asdict(became),
                "cache_dtype": asked.dtype,
                "model": asked.model or run.model,
                "differs": result.differs.get(became.name, []),
                "outcomes": dict(result.passed.get(became.name, {})),
            }
            for asked, became in zip(run.variants, result.variants, strict=True)
        ],
        "num_scores": result.num_scores,
    }
