"""The commands that write something, on a small trace and its run; and whether what they left is whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fuzz.bases import CONFIG, FORMAT, POLICY, write_queried, write_trace
from support.decide_files import Case
from support.outcome_files import own_line, write_lines
from support.run_cli import kvtrace
from support.stand_ins import COUNTING, answers_to, stand_in

from faults.damage import copy_trace
from faults.fuzz import SCALES
from faults.small_trace import write_small_trace
from kvtrace.errors import InputError
from kvtrace.fixture.make import CASES_FILE, FIXTURE_FILE, PROMPTS_FILE
from kvtrace.outcomes.table import read_outcomes
from kvtrace.quality.run.result import OUTCOMES_FILE
from kvtrace.quality.run.score_table import SCORES_FILE
from kvtrace.quality.run.work import RESULT_FILE, WORK
from kvtrace.quality.scores import read_scores
from kvtrace.runs.open import open_run
from kvtrace.scales.load import load_artifact
from kvtrace.trace.reader import open_trace
from kvtrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

OLD: Final = "what was there before\n"
_STAND_IN: Final = """#!/bin/sh
case "$1" in
-c) echo '{{"vllm": "0.32", "has_vllm": true, "kvtrace": "{version}", "has_plug_in": true}}' ;;
*) exec '{python}' -m faults.stand_in "$3" ;;
esac
"""
"""What `kvtrace capture run` looks at, and what it starts."""
_PROMPTS: Final = "".join(
    json.dumps({"prompt": f"Count to {n}", "workload": "chat", "id": f"{n}"}) + "\n" for n in range(8)
)
_RECORD: Final = {"asset": "AX-104", "revision": "B", "nominal_torque": 12.5, "unit": "N.m"}
_LOOKS_POLICY: Final = """
name = "service"
date = 2026-01-01
[quality]
margin = 0.1
floor = 0.5
looks = 5
"""


@dataclass(frozen=True, slots=True)
class Written:
    """What a command writes: a run, a trace, scales, or a file of some ending."""

    kind: str
    arguments: Callable[[Inputs, Path], tuple[object, ...]]
    """(the inputs, where to) → the command line"""
    replaces: bool = True
    """Whether it may be told to replace what is there."""


class Inputs:
    """A small trace without a profile, its run, a policy, prompts, and what stands in for vLLM's Python.

    decision: a folder of all that a decision rests on, its command line `decide`; judged: answers and the
    cases that they answer.
    """

    def __init__(self, folder: Path) -> None:
        self.trace = write_small_trace(folder / "small.kvtrace")
        self.run = folder / "base.run"
        assert kvtrace("replay", self.trace, "--scales", SCALES, "-o", self.run).returncode == 0
        self.counted = folder / "counted.kvtrace"
        self.trace.rename(self.counted)
        copy_trace(self.counted, self.trace)
        shutil.rmtree(self.trace / "profile")
        self.every_layer = write_trace(folder / "every-layer.kvtrace", "bfloat16")
        self.policy, self.prompts = folder / "policy.toml", folder / "prompts.jsonl"
        self.policy.write_text(POLICY)
        self.prompts.write_text(_PROMPTS)
        self.scales = Path(shutil.copytree(SCALES, folder / SCALES.name))
        self.python = folder / "python"
        self.python.write_text(_STAND_IN.format(python=sys.executable, version=__version__))
        self.python.chmod(0o700)
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(CONFIG))
        self.decision = folder / "decision"
        self.decision.mkdir()
        self.decide = Case(self.decision).files()
        self.served = self.decision / "all.serving"
        self.outcomes = write_lines(
            folder / "outcomes.jsonl",
            [own_line(f"{n}", variant=variant) for n in range(30) for variant in ("bf16-a", "bf16-b", "fp8")],
        )
        self.answered = folder / "answered"
        assert kvtrace("outcomes", self.outcomes, "-o", self.answered).returncode == 0
        self.looks_policy = folder / "looks.toml"
        self.looks_policy.write_text(_LOOKS_POLICY)
        self.cases = write_lines(folder / "cases.jsonl", [{"id": "a", "expected": _RECORD}])
        self.answers = write_lines(folder / "answers.jsonl", [{"id": "a", "answer": json.dumps(_RECORD)}])
        self.harm, self.fixture = folder / "harm.run", folder / "fixture"
        queried = write_queried(folder / "queried.kvtrace")
        assert kvtrace("replay", queried, "--cache-dtype", FORMAT, "-o", self.harm).returncode == 0
        (folder / "words").mkdir()
        self.words = stand_in(folder / "words", COUNTING)
        assert kvtrace(*self.filled(*_FIXTURE), "-o", self.fixture).returncode == 0
        self.answers_folder = answers_to(self.fixture, folder / "answering")
        self.quality = folder / "quality"
        assert kvtrace(*self.filled(*_QUALITY), "-o", self.quality).returncode == 0

    def filled(self, *arguments: object) -> tuple[str, ...]:
        """Return a command line; `{trace}` and the like stand for the input of that name."""
        return tuple(str(one).format(**vars(self)) for one in arguments)

    def old(self, written: Written, output: Path) -> None:
        """Put something there that a command may be told to replace."""
        if not written.replaces:
            return
        folders = {
            "run": self.run, "trace": self.counted, "fixture": self.fixture, "quality": self.quality
        }  # fmt: skip
        if written.kind in folders:
            shutil.copytree(folders[written.kind], output)
        else:
            output.write_text(OLD)


def _scales(path: Path) -> object:
    return load_artifact(path).scales


def _fixture(path: Path) -> None:
    """Raise ValueError: the files of a fixture are not those that it says."""
    content = json.loads((path / FIXTURE_FILE).read_text())
    for name, key in ((PROMPTS_FILE, "prompts_sha256"), (CASES_FILE, "cases_sha256")):
        if hashlib.sha256((path / name).read_bytes()).hexdigest() != content[key]:
            raise ValueError(f"{name} is another")


def _quality(path: Path) -> None:
    """Raise ValueError, OSError or InputError: a quality run is neither finished nor one that goes on."""
    if (path / RESULT_FILE).exists():
        json.loads((path / RESULT_FILE).read_text())
        read_scores(path / SCORES_FILE)
        read_outcomes(path / OUTCOMES_FILE)
    elif any(path.iterdir()) and not any((path / WORK).iterdir()):
        raise ValueError("has neither a result nor work to go on with")


def problem(written: Written, output: Path) -> str:
    """Return why an output is neither what was there nor a whole new one; "" where it is, or is absent."""
    if not os.path.lexists(output):
        return "what was there is gone" if written.replaces else ""
    try:
        if written.kind in _READERS:
            _READERS[written.kind](output)
            return ""
        content = output.read_bytes()
        is_whole = content == OLD.encode() or _ENDS[written.kind](content)
    except (InputError, OSError, ValueError) as error:
        return f"is not whole: {error}"
    return "" if is_whole else f"ends with {content[-80:]!r}"


_READERS: Final[dict[str, Callable[[Path], object]]] = {
    "run": open_run,
    "trace": open_trace,
    "scales": _scales,
    "fixture": _fixture,
    "quality": _quality,
}
_ENDS: Final[dict[str, Callable[[bytes], bool]]] = {
    "text": lambda content: content.endswith(b"\n") and len(content) > len(OLD),
    "json": lambda content: isinstance(json.loads(content), dict),
    "lines": lambda content: (
        bool(content) and all(isinstance(json.loads(x), dict) for x in content.splitlines())
    ),
    "html": lambda content: content.rstrip().endswith(b"</html>"),
    "parquet": lambda content: content[:4] == content[-4:] == b"PAR1",
}


def _forced(*arguments: object) -> Callable[[Inputs, Path], tuple[object, ...]]:
    """Return a command line with `-o` and `--force`; see `Inputs.filled`."""
    return lambda inputs, output: (*inputs.filled(*arguments), "-o", output, "--force")


_MARGIN: Final = ("--margin", "0.1", "--floor", "0.5")
_LONGEST: Final = ("--max-model-len", "512")
_FIXTURE: Final = (
    *("fixture", "make", "--model", "m", "--length", "short=450"),
    *("--language", "en", "--vllm-python", "{words}"),
)
_QUALITY: Final = (
    *("quality", "run", "--model", "{answers_folder}/model", "--vllm-python", "{answers_folder}/python"),
    *("--prompts", "{fixture}/prompts.jsonl", "--cases", "{fixture}/cases.jsonl"),
    *("--engine-arg", "answers={answers_folder}/answers.json"),
    *(part for dtype in ("bf16", "bf16", "fp8") for part in ("--variant", dtype)),
)
WRITERS: Final = {
    "replay": Written("run", _forced("replay", "{trace}", "--scales", SCALES)),
    "replay --intervals": Written("run", _forced("replay", "{counted}", "--intervals")),
    "report": Written("text", _forced("report", "{trace}")),
    "report --json": Written("json", _forced("report", "{run}", "--json")),
    "report --format html": Written("html", _forced("report", "{run}", "--format", "html")),
    "report --page": Written("html", lambda i, o: ("report", i.run, "--page", o, "--force")),
    "calibrate": Written("scales", lambda i, o: ("calibrate", i.every_layer, "-o", o), replaces=False),
    "compare": Written("text", _forced("compare", "{run}")),
    "check": Written("text", _forced("check", "{run}", "--policy", "{policy}", "--candidate", SCALES.name)),
    "scales": Written("text", _forced("scales", SCALES)),
    "query": Written("parquet", _forced("query", "{run}", "rank_heads", "--format", "parquet")),
    "inspect --verify": Written("text", _forced("inspect", "{counted}", "--verify")),
    "inspect --repair": Written(
        "trace", lambda i, o: ("inspect", i.counted, "--repair", "-o", o), replaces=False
    ),
    "capacity": Written("text", _forced("capacity", "{config}", *_LONGEST)),
    "capacity --sheet": Written(
        "text",
        lambda i, o: (
            "capacity",
            i.config,
            *_LONGEST,
            "--budget",
            "1GiB",
            "--limit",
            8,
            "--sheet",
            o,
            "--force",
        ),
    ),
    "capacity --write-recipe": Written(
        "json",
        lambda i, o: (
            "capacity",
            i.config,
            *_LONGEST,
            "--cache-dtype",
            "fp8/0:auto",
            "--write-recipe",
            o,
            "--force",
        ),
    ),
    "outcomes": Written("lines", _forced("outcomes", "{outcomes}")),
    "quality compare": Written("json", _forced("quality", "compare", "{answered}", *_MARGIN, "--json")),
    "quality compare --looks": Written(
        "json",
        lambda i, o: ("quality", "compare", i.answered, "--policy", i.looks_policy, "--looks", o),
        replaces=False,
    ),
    "fixture judge": Written("lines", _forced("fixture", "judge", "{cases}", "{answers}", "--variant", "a")),
    "fixture make": Written("fixture", _forced(*_FIXTURE, "--seed", 1)),
    "quality run": Written("quality", _forced(*_QUALITY, "--seed", 1)),
    "serving": Written("lines", _forced("serving", "fp8={decision}/fp8-0.jsonl")),
    "goodput": Written(
        "json", _forced("goodput", "{served}", "--policy", "{decision}/policy.toml", "--json")
    ),
    "export-arrivals": Written("lines", _forced("export-arrivals", "{served}", "--variant", "fp8")),
    "decide": Written("json", lambda i, o: (*i.decide, "--json", "-o", o, "--force")),
    "decide --page": Written("html", lambda i, o: (*i.decide, "--page", o, "--force")),
    "plan": Written("text", _forced("plan", "{harm}", "--candidate", FORMAT)),
    "capture run": Written(
        "trace",
        _forced("capture", "run", "--model", "m", "--prompts", "{prompts}", "--vllm-python", "{python}"),
    ),
}
"""Every command that writes, by name. `capture run` drives a process that stands in for vLLM's."""
