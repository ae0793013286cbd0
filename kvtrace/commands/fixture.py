"""`kvtrace fixture`: an evaluation of our own, its judge, and the judge's own test."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import Annotated

import typer

from kvtrace.commands.fixture_make import fixture_make
from kvtrace.commands.options import FORCE, check_absent, say

fixture = typer.Typer(no_args_is_help=True, help="Find one record among others like it; a strict judge.")
fixture.command("make")(fixture_make)


@fixture.command("judge")
def fixture_judge(
    cases: Annotated[Path, typer.Argument(help="JSON lines with id and expected.")],
    answers: Annotated[Path, typer.Argument(help="JSON lines with id and answer, or failed.")],
    variant: Annotated[str, typer.Option("--variant", help="Who answered, such as bf16-a.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="outcomes.jsonl: a new file.")],
    allow_fence: Annotated[
        bool, typer.Option("--allow-fence", help="Take an object inside one fenced block.")
    ] = False,
    force: FORCE = False,
) -> None:
    """Judge answers into outcomes.jsonl. A case without an answer is an error, and stays in the count."""
    from kvtrace.figures import count
    from kvtrace.fixture.answers import judge_answers

    check_absent(output, force=force)
    found = judge_answers(cases, answers, output, variant=variant, allow_fence=allow_fence)
    named = ", ".join(f"{many:,} {reason.replace('_', ' ')}" for reason, many in found.most_common())
    say(f"{count(found.total(), 'case')}: {named}\n")


@fixture.command("selftest")
def fixture_selftest() -> None:
    """Try the judge on answers whose verdict is known; exit 1 if it gets one wrong."""
    from kvtrace.fixture.selftest import CASES, SAID, wrong_cases

    wrong = wrong_cases()
    say(f"{len(CASES) - len(wrong)} of {len(CASES)} answers judged as they should be: {SAID}\n")
    for case in wrong:
        say(f"  expected {case.expected}: {case.answer[:60]!r}\n")
    raise typer.Exit(1 if wrong else 0)
