"""An offline capture: vLLM as a subprocess in its own environment, one trace out of it, or none."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kvtrace.capture.driver import drive
from kvtrace.errors import CaptureError, InputError, OutputExistsError
from kvtrace.files.staging import put, staged
from kvtrace.trace.capture_names import KEY_FILE, TRACE_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvtrace.capture.driver import Progress
    from kvtrace.capture.options import CaptureOptions
    from kvtrace.capture.prompts import Prompt
    from kvtrace.trace.reader import Trace

DRIVER: Final = "kvtrace_capture.offline"
LOG_FILE: Final = "vllm.log"


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What is to be captured with what; `engine`: further arguments of `vllm.LLM`."""

    model: str
    prompts: Sequence[Prompt]
    engine: dict[str, Any]
    temperature: float = 0.0
    max_tokens: int = 128


@dataclass(frozen=True, slots=True)
class OfflineCapture:
    """What came of it."""

    num_done: int
    is_interrupted: bool
    has_trace: bool
    """False: it was interrupted before a row was committed, and nothing is left."""
    faults: tuple[str, ...] = ()
    """What the trace itself says it lacks, in words."""


def capture_offline(
    run: OfflineRun,
    options: CaptureOptions,
    python: Path,
    output: Path,
    progress: Progress,
    *,
    overwrite: bool,
) -> OfflineCapture:
    """Capture all prompts into a new trace at `output`.

    options.directory is not used: vLLM writes into a hidden folder beside `output`, and a trace that opens is
    moved into its place. A folder that a killed run left goes with the next one. The key of all hashes is
    `kvtrace.key` beside it, unless options name another.
    progress: takes (requests done, all). Ctrl-C ends vLLM in good order: what was captured becomes the trace.
    overwrite: whether a trace at `output` gives way once the new one is there.
    Raises OutputExistsError: see `check_output`. Raises CaptureError: vLLM failed; its log is kept beside it.
    """
    check_output(output, overwrite=overwrite)
    with ExitStack() as hidden:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            folder = hidden.enter_context(staged(output, private=True))
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}") from error
        key_file = options.hash_key_file or output.parent / KEY_FILE
        options = replace(options, directory=folder, hash_key_file=key_file)
        told = drive(DRIVER, _job(run, options), python, folder / LOG_FILE, progress)
        if reason := told.failure((folder / LOG_FILE).read_text(errors="replace")):
            kept = _kept_log(folder, output)
            raise CaptureError(f"{output}: vLLM ended without a trace: {reason}; all it said is in {kept}")
        trace = _readable_trace(folder, output, is_interrupted=told.is_interrupted)
        if trace is None:
            return OfflineCapture(told.done, told.is_interrupted, has_trace=False)
        faults = _faults(trace)
        put(trace.path, output)  # what had the name goes only when the new one is there
        return OfflineCapture(told.done, told.is_interrupted, has_trace=True, faults=faults)


def check_output(output: Path, *, overwrite: bool) -> None:
    """Raise OutputExistsError: something is at `output` and is to be kept, or is no trace."""
    if output.is_symlink():
        raise OutputExistsError(f"{output}: is a link; give the name of the trace itself, or another")
    if not output.exists():
        return
    if not overwrite:
        raise OutputExistsError(f"{output}: exists; give another name, or --force to overwrite it")
    if not (output / TRACE_FILE).is_file():
        raise OutputExistsError(f"{output}: exists and is not a trace; --force only overwrites traces")


def _job(run: OfflineRun, options: CaptureOptions) -> dict[str, Any]:
    # Positions that come out of the prefix cache pass no hook: without it every position is seen.
    engine = {
        "enable_prefix_caching": False,
        **run.engine,
        "kv_transfer_config": options.kv_transfer_config(),
    }
    return {
        "model": run.model,
        "engine": engine,
        "temperature": run.temperature,
        "prompts": [one.job(run.max_tokens) for one in run.prompts],
    }


def _kept_log(folder: Path, output: Path) -> Path:
    kept = output.with_name(f"{output.name}.log")
    (folder / LOG_FILE).chmod(0o600)
    (folder / LOG_FILE).replace(kept)
    return kept


def _readable_trace(folder: Path, output: Path, *, is_interrupted: bool) -> Trace | None:
    """Return the trace in `folder`; None: it was interrupted before there was one that can be read."""
    from kvtrace.trace.reader import open_trace

    try:
        (path,) = folder.glob("*.kvtrace")
        trace = open_trace(path)
        _ = trace.tokens
    except (ValueError, InputError) as error:
        if is_interrupted:
            return None
        told = str(error).replace(f"{folder}/", "")
        log = (folder / LOG_FILE).read_text(errors="replace")
        reason = next((line for line in log.splitlines() if "kvtrace: capture stopped" in line), told)
        raise CaptureError(
            f"{output}: vLLM served the prompts, but left no trace that can be read: {reason}; "
            f"all it said is in {_kept_log(folder, output)}"
        ) from error
    return trace


def _faults(trace: Trace) -> tuple[str, ...]:
    from kvtrace.trace.completeness import rows_lost

    stores = (*trace.ranks, *trace.attention.all)
    failures = [f"the writer failed: {store.commit.failure}" for store in stores if store.commit.failure]
    lost = sum(rows_lost(trace).values())
    if lost:
        failures.append(f"{lost:,} rows were lost (kvtrace inspect says why)")
    dropped = sum(sum(reasons.values()) for s in trace.attention.all for reasons in s.dropped.values())
    if dropped:
        failures.append(f"{dropped:,} rows for attention were lost (kvtrace inspect says why)")
    return tuple(failures)
