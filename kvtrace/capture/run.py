"""An offline capture: vLLM as a subprocess in its own environment, one trace out of it, or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, Final

from kvtrace.capture.engine_log import reason_in_log
from kvtrace.errors import CaptureError, InputError, OutputExistsError
from kvtrace.files.staging import put, staged
from kvtrace.trace.capture_names import KEY_FILE, TRACE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kvtrace.capture.options import CaptureOptions
    from kvtrace.capture.prompts import Prompt
    from kvtrace.trace.reader import Trace

    Progress = Callable[[int, int], None]

DRIVER: Final = "kvtrace_capture.offline"
LOG_FILE: Final = "vllm.log"
STOP_TIMEOUT_S: Final = 90.0
"""For vLLM to close the trace after Ctrl-C; then it is killed."""


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


@dataclass(slots=True)
class _Told:
    """What the driver has said so far."""

    total: int = 0
    done: int = 0
    error: str | None = None


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
        told, status, is_interrupted = _drive(_job(run, options), python, folder, progress)
        if not is_interrupted and (status != 0 or told.error is not None):
            raise _failure(told, status, folder, output)
        trace = _readable_trace(folder, output, is_interrupted=is_interrupted)
        if trace is None:
            return OfflineCapture(told.done, is_interrupted, has_trace=False)
        faults = _faults(trace)
        put(trace.path, output)  # what had the name goes only when the new one is there
        return OfflineCapture(told.done, is_interrupted, has_trace=True, faults=faults)


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
    prompts = [
        {
            "line": prompt.line,
            "workload": prompt.workload,
            "id": prompt.id,
            "max_tokens": prompt.max_tokens or run.max_tokens,
            **({"messages": prompt.messages} if prompt.messages else {"prompt": prompt.prompt}),
        }
        for prompt in run.prompts
    ]
    # Positions that come out of the prefix cache pass no hook: without it every position is seen.
    engine = {
        "enable_prefix_caching": False,
        **run.engine,
        "kv_transfer_config": options.kv_transfer_config(),
    }
    return {"model": run.model, "engine": engine, "temperature": run.temperature, "prompts": prompts}


def _drive(job: dict[str, Any], python: Path, folder: Path, progress: Progress) -> tuple[_Told, int, bool]:
    """Run the driver to its end. Returns what it told, its exit status, and whether Ctrl-C ended it."""
    told = _Told()
    events, events_of_driver = os.pipe()
    with (folder / LOG_FILE).open("wb") as log, os.fdopen(events, "rb", buffering=0) as stream:
        process = subprocess.Popen(  # noqa: S603 -- the interpreter that the user named
            [python, "-m", DRIVER, str(events_of_driver)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[events_of_driver],
            start_new_session=True,  # Ctrl-C is for this process, which lets vLLM close the trace
        )
        os.close(events_of_driver)
        is_interrupted = False
        try:
            with _term_as_interrupt():
                _send(process, job)
                _listen(process, stream, told, progress)
        except KeyboardInterrupt:
            is_interrupted = True
            _stop(process)
        finally:
            _kill(process)
    return told, process.returncode, is_interrupted


def _send(process: subprocess.Popen[bytes], job: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already: its log says why
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()


def _listen(process: subprocess.Popen[bytes], stream: Any, told: _Told, progress: Progress) -> None:
    """Follow the events until the driver ends; its own children may hold the pipe open for longer."""
    rest = b""
    with DefaultSelector() as selector:
        selector.register(stream, EVENT_READ)
        while True:
            has_ended = process.poll() is not None
            is_ready = bool(selector.select(0.2))
            received = stream.read(65_536) if is_ready else b""
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                event = json.loads(line)
                told.total, told.done = event.get("total", told.total), event.get("done", told.done)
                told.error = event.get("error", told.error)
                if told.total:
                    progress(told.done, told.total)
            if is_ready and not received:  # every end is closed: nothing more can come
                process.wait()
            if not received and (is_ready or has_ended):
                return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let the driver close the trace; a second Ctrl-C does not wait for it."""
    with suppress(KeyboardInterrupt, subprocess.TimeoutExpired), _term_as_interrupt():
        process.terminate()
        process.wait(STOP_TIMEOUT_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the driver and its engine processes, which share its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


@contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _failure(told: _Told, status: int, folder: Path, output: Path) -> CaptureError:
    reason = reason_in_log((folder / LOG_FILE).read_text(errors="replace")) or told.error
    kept = _kept_log(folder, output)
    if reason is None:
        reason = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return CaptureError(f"{output}: vLLM ended without a trace: {reason}; all it said is in {kept}")


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
