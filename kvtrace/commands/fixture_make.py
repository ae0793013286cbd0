"""`kvtrace fixture make`: prompts of the record task, and the key to judge answers by."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import FORCE, check_absent, say
from kvtrace.commands.trace_inputs import trace_at

if TYPE_CHECKING:
    from kvtrace.fixture.make import LengthClass

_SHORT_TOKENS = 512


class Language(StrEnum):
    """Of the prompts."""

    EN = "en"
    DE = "de"


class Form(StrEnum):
    """How prompts are given."""

    MESSAGES = "messages"
    PROMPT = "prompt"


def fixture_make(
    model: Annotated[str, typer.Option("--model", help="Whose tokenizer counts; as vLLM takes it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    length: Annotated[
        list[str] | None,
        typer.Option(
            "--length",
            metavar="NAME=TOKENS",
            help="A class of prompt lengths; repeatable. Default: short=512.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Adds the classes median and p95 of this trace's prompts.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len", min=1, help="Adds the class longest: what this limit of the engine admits."
        ),
    ] = None,
    language: Annotated[
        list[Language] | None, typer.Option("--language", help="Repeatable. Default: both.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Cases of each kind.")] = 1,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same files.")] = 0,
    form: Annotated[
        Form, typer.Option("--as", help="Messages for the chat template, or text for a model without one.")
    ] = Form.MESSAGES,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Of an answer.")] = 128,
    vllm_python: Annotated[
        Path | None,
        typer.Option(
            "--vllm-python", help="Python of vLLM's environment. Default: .venv-vllm here, else this one."
        ),
    ] = None,
    force: FORCE = False,
) -> None:
    """Make prompts that hide one record among others like it, and the key that `fixture judge` reads."""
    from kvtrace.capture.tokenizer import tokenizer_of
    from kvtrace.capture.vllm_python import find_vllm_python
    from kvtrace.commands.progress import show_progress
    from kvtrace.fixture.make import CASES_FILE, FIXTURE_FILE, PROMPTS_FILE, Request, write_fixture

    check_absent(output, force=force)
    if output.exists() and not (output / FIXTURE_FILE).is_file():
        from kvtrace.errors import OutputExistsError

        raise OutputExistsError(f"{output}: exists and is not a fixture; --force only overwrites fixtures")
    lengths = _lengths(length or [], trace, max_model_len, max_tokens)
    request = Request(
        lengths=lengths,
        languages=tuple(dict.fromkeys(one.value for one in language or Language)),
        repeats=repeats,
        seed=seed,
        kind="messages" if form is Form.MESSAGES else "prompt",
        max_tokens=max_tokens,
    )
    python = find_vllm_python(vllm_python)
    with tokenizer_of(model, python) as tokenizer, show_progress("cases") as progress:
        num_cases = write_fixture(request, tokenizer.count, output, _described(model), progress)
    classes = ", ".join(f"{name} {tokens:,}" for name, tokens in lengths)
    say(f"{num_cases:,} cases; prompt tokens: {classes}\n{output / PROMPTS_FILE}\n{output / CASES_FILE}\n")
    if lacking := {"median", "p95", "longest"} - {name for name, _ in lengths}:
        say(f"not made: {', '.join(sorted(lacking))} (--trace, --max-model-len or --length)\n")


def _lengths(
    given: list[str], trace: Path | None, max_model_len: int | None, max_tokens: int
) -> tuple[LengthClass, ...]:
    """Return the length classes, shortest first. Raises InputError: a name twice, no room for an answer."""
    from kvtrace.errors import InputError
    from kvtrace.fixture.make import LengthClass, lengths_of_requests, parse_length

    found = [parse_length(text) for text in given or [f"short={_SHORT_TOKENS}"]]
    if trace is not None:
        from kvtrace.trace.reader import open_trace

        requests = open_trace(trace_at(trace)).requests.values()
        found.extend(lengths_of_requests([request.prompt_tokens for request in requests]))
    if max_model_len is not None:
        if max_model_len <= max_tokens:
            raise InputError(
                f"--max-model-len {max_model_len:,}: expected more than --max-tokens {max_tokens:,}"
            )
        found.append(LengthClass("longest", max_model_len - max_tokens))
    for name in {one.name for one in found}:
        if sum(one.name == name for one in found) > 1:
            raise InputError(f"--length {name}: is given twice, or as --trace or --max-model-len too")
    return tuple(sorted(found, key=lambda one: (one.num_tokens, one.name)))


def _described(model: str) -> dict[str, Any]:
    from kvtrace.trace.fingerprint import chat_template_digest, tokenizer_digest
    from kvtrace.version import __version__

    folder = Path(model)
    return {
        "kvtrace_version": __version__,
        "tokenizer_digest": tokenizer_digest(folder),
        "chat_template_digest": chat_template_digest(folder),
    }
