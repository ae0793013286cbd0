"""The cases: the sample, the second base of the incidents, planted faults, formats, the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from same_as.commands import Case, Command, both, replay

if TYPE_CHECKING:
    from collections.abc import Mapping

    Queries = Mapping[str, tuple[str, ...]]
    """Name of a query → its parameters."""

SAMPLE = "smollm2-135m"
ARTIFACTS = ("chat-per-tensor", "chat-per-head", "all-per-head", "halved")
"""In `samples/scales`."""
CALIBRATED = {
    "per-head": "",
    "per-tensor": "--granularity tensor",
    "half": "--headroom 0.5",
    "percentile": "--method percentile --percentile 99.9",
}
"""Artifact for the second base → the options of `kvtrace calibrate` that make it."""
FAMILIES = ("sample", "biased", "faults", "formats", "surface")


@dataclass(frozen=True)
class Fault:
    """A planted fault, as `plant.py` describes it."""

    name: str
    num_causes: int
    artifacts: tuple[str, ...]
    against: str | None


def all_cases(queries: Queries, faults: list[Fault], formats: list[str]) -> list[Case]:
    """Return every case, the long ones first. formats: artifacts of every format."""
    return [
        _sample(queries),
        _biased(queries),
        *map(_fault, faults),
        _formats(formats),
        _surface(),
    ]


def _sample(queries: Queries) -> Case:
    trace = f"{SAMPLE}.kvtrace"
    others = (
        "--online fp8-per-token-head --online int8-per-token-head --skip-layers 0,29 --engine vllm-triton"
    )
    different = " ".join(f"--allow-different {one}" for one in _OF_THE_MODEL)
    checks = [
        command
        for policy in ("strict", "lenient", "segments")
        for candidate in ("chat-per-head", "halved")
        for command in both(
            f"check-{policy}-{candidate}", f"check run --policy {policy}.toml --candidate {candidate}"
        )
    ]
    return Case(
        "sample",
        (
            replay("replay", f"{trace} {_scales(ARTIFACTS)} --intervals"),
            *_reports(),
            Command("report-120", "report run --top 20", columns=120),
            Command("page", "report run --format html -o page.html", makes=("page.html",)),
            *[Command(f"query-{name}", f"query run {name} --json", "json") for name in queries],
            *checks,
            *both("compare", "compare run"),
            *both("compare-policy", "compare run --policy segments.toml --baseline halved"),
            replay(
                "replay-other", f"{trace} {others} {_scales(ARTIFACTS[1:2])} --policy strict.toml", "other"
            ),
            *both("report-other", "report other"),
            Command("check-other", "check other --policy lenient.toml --candidate fp8-per-token-head"),
            *both("compare-two", "compare run other --policy lenient.toml"),
            replay("replay-small", "biased.kvtrace", "small"),
            *both("compare-refused", "compare run small"),
            *both("compare-allowed", f"compare run small {different} --policy lenient.toml"),
            Command("report-mixed", f"report {trace} biased.kvtrace"),
            *both("inspect", f"inspect {trace} --verify"),
            *_audits(trace, ARTIFACTS),
        ),
    )


def _biased(queries: Queries) -> Case:
    trace = "biased.kvtrace"
    made = _scales(tuple(CALIBRATED))
    new = {
        "holdout": "--holdout 0.25",
        "chat": "--granularity tensor --workload chat",
        "mse": "--method mse --power-of-two --merge-kv",
        "short": "--max-position 200 --phase prefill --holdout-workload code --headroom 2",
    }
    return Case(
        "biased",
        (
            *both("inspect", f"inspect {trace}"),
            replay("replay", f"{trace} {made}"),
            *_reports(),
            Command(
                "page", "report run --format html -o page.html --plots plots", makes=("page.html", "plots")
            ),
            *[Command(f"query-{name}", f"query run {name}") for name in queries],
            *_queries_with(queries),
            *both("check", "check run --policy lenient.toml --candidate per-head"),
            *both("compare", "compare run --policy strict.toml"),
            Command(
                "report-trace-json",
                f"report {trace} {made} --fp8-format e5m2 --backend FLASHINFER --tp 3 --json",
                "json",
            ),
            replay("replay-direct", f"{trace} --scales per-head --direct --engine sglang", "direct"),
            Command("replay-verify", f"replay {trace} --scales per-head --verify -o verified"),
            *[
                Command(f"calibrate-{name}", f"calibrate {trace} -o new-{name} {how}", makes=(f"new-{name}",))
                for name, how in new.items()
            ],
            *_audits(trace, tuple(CALIBRATED)),
            *both("scales-alone", "scales half --engine sglang --tp 3"),
        ),
    )


def _fault(fault: Fault) -> Case:
    against = f"--against {fault.against}" if fault.against else ""
    shown = [Command("report-json", "report run --json", "json")]
    if fault.num_causes == 1:
        shown.append(Command("report", "report run"))
    # The last artifact is the one with the fault.
    audited = [
        Command(f"scales-{one}-json", f"scales {one} --trace incident.kvtrace {against} --json", "json")
        for one in fault.artifacts[-1:]
    ]
    made = replay("replay", f"incident.kvtrace {_scales(fault.artifacts)} {against}")
    return Case(f"faults/{fault.name}", (made, *shown, *audited))


def _formats(artifacts: list[str]) -> Case:
    return Case(
        "formats", tuple(one for path in artifacts for one in both(f"scales-{path}", f"scales {path}"))
    )


def _surface() -> Case:
    """Return what the command line says without a trace: help, and answers to what cannot be."""
    shown = (
        *("report", "inspect", "scales", "calibrate", "replay", "query", "compare", "check", "capture"),
        *("capture flags", "capture run", "capture plan"),
    )
    wrong = {
        "nothing": "",
        "unknown-command": "diagnose",
        "no-such-trace": "report absent.kvtrace",
        "no-trace": "inspect .",
        "no-such-run": "query absent.run rank_heads",
        "no-such-query": "query absent.run rank_head",
        "no-query": "query absent.run",
        "no-value": "query absent.run rank_heads --param top",
        "no-such-artifact": "scales absent",
        "empty-artifact": "scales .",
        "unknown-format": "scales . --artifact-format gguf",
        "contradiction": "report absent.run --json --format md",
        "no-such-policy": "check absent.run --policy absent.toml",
        "no-percentile": "calibrate absent.kvtrace -o x --method percentile",
        "unknown-engine": "replay absent.kvtrace -o x --engine abacus",
        "no-sizes": "capture plan",
        "bad-budget": "capture flags --model m -o out --byte-budget much",
    }
    return Case(
        "surface",
        (
            Command("version", "--version"),
            Command("help", "--help"),
            *[Command(f"help-{name.replace(' ', '-')}", f"{name} --help") for name in shown],
            Command("queries", "query --list"),
            *[Command(name, arguments) for name, arguments in wrong.items()],
            *both("plan", "capture plan --layers 30 --kv-heads 3 --head-dim 64 --rate 500"),
            *both("flags", "capture flags --model m -o out --layers 0,1 --off"),
        ),
    )


def _scales(artifacts: tuple[str, ...]) -> str:
    return " ".join(f"--scales {one}" for one in artifacts)


def _reports() -> tuple[Command, ...]:
    return (*both("report", "report run"), Command("report-md", "report run --format md"))


def _audits(trace: str, artifacts: tuple[str, ...]) -> list[Command]:
    return [
        command for one in artifacts for command in both(f"scales-{one}", f"scales {one} --trace {trace}")
    ]


_OF_THE_MODEL = (
    *("weights_digest", "model_revision", "tokenizer_revision", "chat_template_digest"),
    *("trace_sha256", "effective_args"),
)
_TOGETHER = (("candidate", "tensor"), ("tensor", "layer", "kv_head"), ("workload", "phase", "source"))
"""Parameters that nearly every query has, as they are tried."""
_CHOSEN = {
    "candidate": "half",
    "tensor": "v",
    "layer": "3",
    "kv_head": "1",
    "workload": "chat",
    "phase": "prefill",
    "source": "biased",
    "top": "3",
    "width": "64",
    "by": "prompt",
    "edges": "64,512",
    "prompt_edges": "64,512",
    "output_edges": "16,64",
    "min_requests": "5",
    "min_tokens": "20",
    "margin_db": "1",
    "baseline": "per-tensor",
    "per_head": "per-head",
    "limit": "0.05",
    "intervals": "false",
}
"""Parameter → a value other than its default, that the run of the second base knows."""


def _queries_with(queries: Queries) -> list[Command]:
    """Return each query, with each of its own parameters in turn, and with the common ones."""
    commands = []
    for name, parameters in queries.items():
        # A commit later than this file may know parameters that have no value here.
        own = [one for one in parameters if one in _CHOSEN and not any(one in some for some in _TOGETHER)]
        chosen = [[one] for one in own]
        chosen += [[one for one in parameters if one in some] for some in _TOGETHER]
        for several in filter(None, chosen):
            given = " ".join(f"--param {one}={_CHOSEN[one]}" for one in several)
            asked = f"query run {name} {given} --format csv"
            commands.append(Command(f"query-{name}-{'+'.join(several)}", asked, "csv"))
    return commands
