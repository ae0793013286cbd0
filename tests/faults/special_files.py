"""A pipe, folder, loop, device or socket in the place of every file that is read: one line, no waiting."""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from support.run_cli import kvtrace

from faults.damage import copy_trace, kind_of_file
from faults.fuzz import time_limit
from faults.inputs import Inputs
from kvtrace.profile.own_seal import KEY_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS: Final = ("pipe", "folder", "loop", "device", "socket")
_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class SpecialCase:
    """One file that was none. problem: empty where it is as it should be."""

    file: str
    kind: str
    problem: str


def special_files(folder: Path) -> Iterator[SpecialCase]:
    """Yield a case for every kind of file and every kind of special file in its place."""
    inputs = Inputs(folder)
    yield from _given_files(inputs, folder)
    assert kvtrace("replay", inputs.counted, "--intervals", "-o", folder / "grouped").returncode == 0
    for file, (base, command) in _files(inputs).items():
        for kind in KINDS:
            own = folder / "special"
            own.mkdir()
            try:
                yield SpecialCase(file, kind, _problem(own, base, file, kind, command))
            finally:
                shutil.rmtree(own)


Command = tuple[str, ...]
_TRACE_COMMANDS: Final = ("inspect", "{}", "--verify"), ("replay", "{}", "--intervals", "-o", "{}.out")


def _files(inputs: Inputs) -> dict[str, tuple[Path, Command]]:
    """Return file → what holds it, and a command that reads it, `{}` standing for the copy."""
    found: dict[str, tuple[Path, Command]] = {}
    seen = set()
    for path in sorted(inputs.counted.rglob("*")):
        name = str(path.relative_to(inputs.counted))
        kind = kind_of_file(name)
        if path.is_file() and (kind, path.name) not in seen:
            seen.add((kind, path.name))
            found[name] = inputs.counted, _TRACE_COMMANDS[len(seen) % 2]
    for path in sorted(inputs.run.iterdir()):
        found[path.name] = inputs.run, ("report", "{}")
    for name in ("config.json", "kvtrace.json", "model-kv-scales.safetensors"):
        found[name] = inputs.scales, ("scales", "{}")
    return found


def _problem(own: Path, base: Path, file: str, kind: str, command: Command) -> str:
    copy = own / base.name
    copy_trace(base, copy)
    place = copy / file
    place.unlink(missing_ok=True)
    with planted(place, kind):
        return _judged([part.replace("{}", str(copy)) for part in command], str(place))


@contextmanager
def planted(place: Path, kind: str) -> Iterator[None]:
    """Put something that is no regular file in a place."""
    with ExitStack() as stack:
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        elif kind == "loop":
            place.symlink_to(place)
        elif kind == "device":
            place.symlink_to("/dev/zero")
        else:
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            short = Path(f"/tmp/kvtrace-{os.getpid()}.sock")  # a socket's name is short
            server.bind(str(short))
            stack.callback(short.unlink)
            place.symlink_to(short)
        yield


def _judged(command: list[str], place: str) -> str:
    """Return what is wrong with how a command ended. What it need not read it may pass over."""
    try:
        with time_limit(_SECONDS):
            ended = kvtrace(*command)
    except TimeoutError as error:
        return str(error)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("kvtrace: ")]
    if ended.returncode == 0:
        return ""
    if (ended.returncode, len(errors), ended.stdout) != (2, 1, ""):
        return f"ended with {ended.returncode}: {ended.stderr[-300:]}"
    parts = place, str(Path(place).parent)
    return "" if any(part in errors[0] for part in parts) else f"names another file: {errors[0][-300:]}"


def _given_files(inputs: Inputs, folder: Path) -> Iterator[SpecialCase]:
    """Yield the same for files that a command line or the environment names."""
    for file, command in _given(inputs, folder).items():
        for kind in KINDS:
            place, before = folder / file, os.environ.get(KEY_VARIABLE)
            try:
                if file == "seal.key":
                    os.environ[KEY_VARIABLE] = str(place)
                with planted(place, kind):
                    yield SpecialCase(file, kind, _judged([*map(str, command(place))], str(place)))
            finally:
                shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
                os.environ.pop(KEY_VARIABLE, None)
                if before is not None:
                    os.environ[KEY_VARIABLE] = before


def _given(inputs: Inputs, folder: Path) -> dict[str, Callable[[Path], tuple[object, ...]]]:
    replay = ("replay", inputs.counted, "-o", folder / "out", "--force")
    compared, sound = ("quality", "compare", inputs.answered), f"fp8={inputs.decision / 'fp8-0.jsonl'}"
    judged = ("fixture", "judge", "--variant", "a", "-o", folder / "judged", "--force")
    asked = ("quality", "run", "--model", "m", "--variant", "bf16", "-o", folder / "asked")
    served = ("serving", "-o", folder / "all.serving", "--force")
    capture = ("capture", "run", "--model", "m", "-o", folder / "captured", "--vllm-python", inputs.python)
    return {
        "given-policy.toml": lambda place: ("check", inputs.run, "--policy", place),
        "given-manifest.json": lambda place: (*replay, "--manifest", place),
        "given-scales.json": lambda place: (*replay, "--scales", place),
        "given-config.json": lambda place: ("capture", "plan", "--model", place),
        "given-prompts.jsonl": lambda place: (*capture, "--prompts", place),
        "given-model.json": lambda place: ("capacity", place, "--max-model-len", 512),
        "given-engine.log": lambda place: ("capacity", "--from-log", place),
        "given-metrics.prom": lambda place: ("capacity", "--from-metrics", place),
        "given-outcomes.jsonl": lambda place: ("outcomes", place, "-o", folder / "table", "--force"),
        "given-prompt.key": lambda place: (
            "outcomes",
            inputs.outcomes,
            "--key",
            place,
            "-o",
            folder / "table",
            "--force",
        ),
        "given-answered": lambda place: ("quality", "compare", place, "--margin", 0.1, "--floor", 0.5),
        "given-quality-policy.toml": lambda place: (*compared, "--policy", place),
        "given-looks.json": lambda place: (*compared, "--policy", inputs.looks_policy, "--looks", place),
        "given-cases.jsonl": lambda place: (*judged, place, inputs.answers),
        "given-answers.jsonl": lambda place: (*judged, inputs.cases, place),
        "given-scores.parquet": lambda place: (*compared, "--margin", 0.1, "--floor", 0.5, "--scores", place),
        "given-asked.jsonl": lambda place: (*asked, "--prompts", place),
        "given-key-of-cases.jsonl": lambda place: (
            *(*asked, "--prompts", inputs.fixture / "prompts.jsonl"),
            *("--cases", place),
        ),
        "given-served.jsonl": lambda place: (*served, f"fp8={place}"),
        "given-scrape.prom": lambda place: (*served, sound, "--metrics", f"fp8={place}"),
        "given-served-manifest.json": lambda place: (*served, sound, "--manifest", f"fp8={place}"),
        "given-table.serving": lambda place: ("goodput", place, "--policy", inputs.decision / "policy.toml"),
        "given-contract.toml": lambda place: ("goodput", inputs.served, "--policy", place),
        "given-arrivals.serving": lambda place: ("export-arrivals", place),
        **{
            f"given-{name}.json": lambda place, option=f"--{name}": (*inputs.decide, option, place)
            for name in ("quality", "capacity", "check", "report")
        },
        "seal.key": lambda _: replay,
    }
