"""`kvtrace quality run`: the same prompts through every variant, offline."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.commands.capture_options import POSITION_STRIDE  # noqa: TC001 -- Typer reads the annotations
from kvtrace.commands.options import FORCE, say
from kvtrace.plain_text import plain_line, wrapped
from kvtrace.signals import EXIT_INTERRUPTED, exit_code_of_signal, signals_interrupt

if TYPE_CHECKING:
    from kvtrace.capture.prompts import Prompt
    from kvtrace.fixture.answers import Keyed
    from kvtrace.quality.run.result import RunResult

EXIT_INCOMPLETE = 3


def quality_run(
    model: Annotated[str, typer.Option("--model", help="As vLLM takes it.")],
    variant: Annotated[
        list[str],
        typer.Option(
            "--variant",
            metavar="[NAME:]DTYPE[=DIR]",
            help="bf16, twice; then cache dtypes, each with a checkpoint of its own or not: fp8=calibrated.",
        ),
    ],
    prompts: Annotated[
        Path, typer.Option("--prompts", help="JSON lines as capture run takes them, with id.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder; an interrupted run goes on there.")
    ],
    cases: Annotated[
        Path | None, typer.Option("--cases", help="The key of kvtrace fixture make, to judge the answers by.")
    ] = None,
    capture: Annotated[
        bool, typer.Option("--capture", help="Capture the prompts under BF16 too, to tie losses to heads.")
    ] = False,
    position_stride: POSITION_STRIDE = 16,
    key: Annotated[
        Path | None, typer.Option("--key", help="Of the hashes, such as a kvtrace.key beside traces.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, max=1_000, help="Log-probabilities kept of each step.")
    ] = 20,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Of an answer whose prompt does not say.")
    ] = 128,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="Prompts in the engine together; what a kill may lose.")
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of each variant's order of prompts.")] = 0,
    engine_arg: Annotated[
        list[str] | None,
        typer.Option("--engine-arg", help="NAME=VALUE of vllm.LLM, such as max_model_len=8192; repeatable."),
    ] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(
            "--vllm-python", help="Python of vLLM's environment. Default: .venv-vllm here, else this one."
        ),
    ] = None,
    force: FORCE = False,
) -> None:
    """Answer the same prompts under every variant, in vLLM offline: exit 0, or 3 if one could not be run."""
    from kvtrace.extras import require_extra

    require_extra("analysis", "quality run", "pyarrow")
    from kvtrace.capture.engine_arguments import parse_engine_arguments
    from kvtrace.capture.prompts import read_prompts, require_chat_template
    from kvtrace.capture.vllm_python import find_vllm_python
    from kvtrace.commands.progress import show_progress
    from kvtrace.fixture.answers import read_cases
    from kvtrace.quality.run.result import capture_baseline, write_result
    from kvtrace.quality.run.run import Interrupted, QualityRun, run_variants
    from kvtrace.quality.run.variant import parse_variants

    asked = parse_variants(variant)
    sent = read_prompts(prompts)
    keyed = None if cases is None else read_cases(cases)
    _check_ids(sent, prompts, keyed, cases)
    require_chat_template(Path(model), sent, prompts)
    run = QualityRun(
        model=model,
        variants=asked,
        prompts=sent,
        prompts_sha256=_sha256(prompts),
        cases=keyed,
        cases_sha256=None if cases is None else _sha256(cases),
        engine=parse_engine_arguments(
            engine_arg or [], taken=("model", "kv_cache_dtype", "kv_transfer_config")
        ),
        max_tokens=max_tokens,
        top=top,
        at_once=at_once,
        seed=seed,
        capture={"position_stride": position_stride} if capture else None,
        key=key,
    )
    python = find_vllm_python(vllm_python)
    with signals_interrupt():
        done = run_variants(run, python, output, show_progress, overwrite=force)
        stopped = (
            done if isinstance(done, Interrupted) else capture_baseline(run, done[0], python, show_progress)
        )
    if isinstance(done, Interrupted) or stopped is not None:
        assert stopped is not None
        typer.echo(
            plain_line(
                f"kvtrace: interrupted in {stopped.variant} after {stopped.num_done} of {stopped.num_all}; "
                "the same command goes on"
            ),
            err=True,
        )
        raise typer.Exit(exit_code_of_signal() or EXIT_INTERRUPTED)
    result = write_result(run, *done, output)
    say(_text(result, output, has_trace=capture))
    raise typer.Exit(EXIT_INCOMPLETE if any(one.invalid for one in result.variants) else 0)


def _check_ids(sent: list[Prompt], prompts: Path, keyed: dict[str, Keyed] | None, cases: Path | None) -> None:
    """Raise InputError: a prompt has no id, or that of another, or cases are not those of the prompts."""
    from kvtrace.errors import InputError
    from kvtrace.plain_text import plain

    seen: set[str] = set()
    for one in sent:
        if one.id is None or one.id in seen:
            what = "has no id" if one.id is None else f"has the id {plain(one.id)} of another line"
            raise InputError(f"{prompts}: line {one.line}: {what}; variants are paired by it")
        seen.add(one.id)
    if keyed is not None and keyed.keys() != seen:
        odd = min(keyed.keys() ^ seen)
        raise InputError(
            f"{cases}: has other ids than {prompts}, such as {plain(odd)}; expected the key of these prompts"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text(result: RunResult, out: Path, *, has_trace: bool) -> str:
    from kvtrace.quality.run.result import OUTCOMES_FILE, TRACE_FILE
    from kvtrace.quality.run.score_table import SCORES_FILE

    lines = []
    for one in result.variants:
        if one.invalid is not None:
            lines.extend(wrapped(plain_line(f"{one.name}: INVALID: {one.invalid}"), "", "  "))
            continue
        found = result.passed.get(one.name)
        judged = "" if found is None else f", {found['pass']:,} of {found.total():,} passed"
        served = ", ".join(one.engine.get("backends", ())) or "backend not told"
        lines.append(plain_line(f"{one.name}: {served}{judged}"))
        if one.name in result.differs:
            differs = ", ".join(result.differs[one.name])
            lines.append(plain_line(f"  differs in {differs} too: this compares bundles"))
    files = [SCORES_FILE, *([OUTCOMES_FILE] if result.passed else []), *([TRACE_FILE] if has_trace else [])]
    return "\n".join([*lines, *(str(out / name) for name in files)]) + "\n"
