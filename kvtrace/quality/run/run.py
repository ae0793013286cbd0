"""Every variant through vLLM offline, one after another, on the same prompts in an order of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.capture.driver import drive
from kvtrace.errors import CaptureError
from kvtrace.files.staging import locked
from kvtrace.quality.run.variant import checkpoint
from kvtrace.quality.run.work import FACTS_FILE, open_work
from kvtrace.trace.fingerprint import weights_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from kvtrace.capture.driver import Progress
    from kvtrace.capture.prompts import Prompt
    from kvtrace.fixture.answers import Keyed
    from kvtrace.quality.run.variant import Variant
    from kvtrace.quality.run.work import Work

    Bar = Callable[[str], AbstractContextManager[Progress]]
    """Of what is done now: a bar to move."""

DRIVER: Final = "kvtrace_capture.answers"
LOG_FILE: Final = "vllm.log"
RUN_VERSION: Final = "1.0"


@dataclass(frozen=True, slots=True)
class QualityRun:
    """What is to be run on what."""

    model: str
    variants: tuple[Variant, ...]
    """The first one is the baseline."""
    prompts: Sequence[Prompt]
    """Each with an id."""
    prompts_sha256: str
    cases: dict[str, Keyed] | None
    """The key to judge by; None: nothing is judged."""
    cases_sha256: str | None
    engine: dict[str, Any]
    """Further arguments of `vllm.LLM`, for every variant."""
    max_tokens: int = 128
    top: int = 20
    """Log-probabilities kept of each step."""
    at_once: int = 64
    """Prompts given to the engine together; a killed run loses at most so many."""
    seed: int = 0
    """Of the order of prompts, another one for each variant."""
    capture: dict[str, Any] | None = None
    """Options of the BF16 capture by name; None: none is made."""
    key: Path | None = None
    """Of all hashes, such as the one beside other traces; None: the run makes its own."""

    def job(self) -> dict[str, Any]:
        """Return what must be the same for an interrupted run to go on, without a prompt."""
        return {
            "kvtrace_quality_run": RUN_VERSION,
            "model": self.model,
            "variants": [[one.name, one.dtype, one.model] for one in self.variants],
            "prompts_sha256": self.prompts_sha256,
            "cases_sha256": self.cases_sha256,
            "num_prompts": len(self.prompts),
            "engine": self.engine,
            "max_tokens": self.max_tokens,
            "top": self.top,
            "at_once": self.at_once,
            "seed": self.seed,
            "capture": self.capture,
        }


@dataclass(slots=True)
class VariantRun:
    """What became of a variant."""

    name: str
    invalid: str | None = None
    """Why it could not be run, by vLLM's own words; None: it was."""
    engine: dict[str, Any] = field(default_factory=dict)
    """What the engine says of itself."""
    weights: str | None = None
    """Digest of its checkpoint's weights, scales aside."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Where a run was when it was stopped; the same command goes on from there."""

    variant: str
    num_done: int
    num_all: int


def run_variants(
    run: QualityRun, python: Path, out: Path, bar: Bar, *, overwrite: bool
) -> tuple[Work, list[VariantRun]] | Interrupted:
    """Answer and score every prompt under every variant, and return the work with what became of each.

    python: that of vLLM's environment. out: a folder, new or of the same run interrupted; its work is in
    `out/work`. overwrite: whether another run there gives way. A variant that vLLM refuses is invalid and the
    others go on.
    Raises OutputExistsError: see `open_work`. CaptureError: the baseline could not be run, or vLLM ended
    while it answered. InputError: a checkpoint is not there.
    """
    checkpoints = {one.name: checkpoint(one, run.model) for one in run.variants}
    work = open_work(out, run.job(), overwrite=overwrite)
    found: list[VariantRun] = []
    with locked(work.folder):
        for variant in run.variants:
            work.trim(variant.name)
            with bar(variant.name) as progress:
                became = _run_one(run, variant, checkpoints[variant.name], work, python, progress)
            if isinstance(became, Interrupted):
                return became
            if became.invalid is not None and not found:
                raise CaptureError(
                    f"{out}: the baseline {variant.name} cannot be run: {became.invalid}; all that vLLM said "
                    f"is in {work.file(variant.name, LOG_FILE)}"
                )
            found.append(became)
    return work, found


def _run_one(
    run: QualityRun, variant: Variant, model: str, work: Work, python: Path, progress: Progress
) -> VariantRun | Interrupted:
    if (facts := work.facts_if_complete(variant.name, len(run.prompts))) is not None:
        return VariantRun(variant.name, variant.not_as_asked(facts), facts, weights_digest(Path(model)))
    log = work.file(variant.name, LOG_FILE)
    told = drive(DRIVER, _job(run, variant, model, work), python, log, progress)
    if told.is_interrupted:
        return Interrupted(variant.name, told.done, told.total)
    invalid = told.failure(log.read_text(errors="replace"))
    if invalid is not None and told.engine is not None:  # it was served: this says nothing of the variant
        raise CaptureError(
            f"{variant.name}: vLLM ended after {told.done:,} of {told.total:,}: {invalid}; all it said is in "
            f"{log}; the same command goes on"
        )
    if told.engine is not None:
        invalid = variant.not_as_asked(told.engine)
    return VariantRun(variant.name, invalid, told.engine or {}, weights_digest(Path(model)))


def _job(run: QualityRun, variant: Variant, model: str, work: Work) -> dict[str, Any]:
    # Others share their batches with each prompt in every run: that is the noise that is to be measured.
    chance = random.Random(f"{run.seed}/{variant.name}")  # noqa: S311 -- reproducible, not secret
    order = sorted(run.prompts, key=lambda _: chance.random())
    return {
        "model": model,
        "engine": {"enable_prefix_caching": False, **run.engine, **variant.engine()},
        "prompts": [prompt.job(run.max_tokens) for prompt in order],
        "at_once": run.at_once,
        "top": run.top,
        "answers": str(work.file(variant.name, "answers.jsonl").absolute()),
        "scores": str(work.file(variant.name, "scores.jsonl").absolute()),
        "facts": str(work.file(variant.name, FACTS_FILE).absolute()),
        "teacher": str(work.file(run.variants[0].name, "answers.jsonl").absolute()),
    }
