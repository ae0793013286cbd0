"""Check a run against a policy, in Python and by the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.testing import CliRunner

from kvtrace.commands.check import check as check_command
from kvtrace.commands.compare import compare
from kvtrace.gate.check import check
from kvtrace.gate.policy import load_policy
from kvtrace.runs.open import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.gate.outcome import CheckOutcome

_app = typer.Typer()
_app.command("check")(check_command)
_app.command()(compare)


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(_app, [str(argument) for argument in arguments])


def policy(
    folder: Path,
    limits: str,
    *,
    requests: int = 10,
    segments: str = '[[segments]]\nname = "all"',
    top: str = "",
) -> Path:
    path = folder / "policy.toml"
    path.write_text(
        f'name = "p"\ndate = 2020-01-01\n{top}\n[limits]\n{limits}\n'
        f"[coverage]\nrequests = {requests}\ntokens = 10\n{segments}\n"
    )
    return path


def outcome(run: Path, policy_path: Path, candidate: str | None = None) -> CheckOutcome:
    return check(open_run(run), load_policy(policy_path), candidate)
