"""`kvtrace decide`: may a candidate go out, by limits written beforehand."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtrace.commands.options import FORCE, JSON, OUTPUT, deliver
from kvtrace.errors import InputError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from kvtrace.serving.report import GoodputReport


def decide(
    runs: Annotated[list[Path], typer.Argument(metavar="TABLE...", help="Tables of kvtrace serving.")],
    policy: Annotated[Path, typer.Option("--policy", help="A policy.toml, written before the results.")],
    candidate: Annotated[
        str | None, typer.Option(help="The variant that may go out; by default the only other one.")
    ] = None,
    baseline: Annotated[str, typer.Option(help="The variant that is served now.")] = "bf16-a",
    quality: Annotated[
        Path | None, typer.Option(help="What kvtrace quality compare --json wrote, by the same policy.")
    ] = None,
    capacity: Annotated[
        Path | None, typer.Option(help="What kvtrace capacity --limit N --json wrote.")
    ] = None,
    check: Annotated[Path | None, typer.Option(help="What kvtrace check --json wrote.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="The offered rate to decide at, where runs have several.")
    ] = None,
    output_format: Annotated[
        Literal["text", "json", "md"],
        typer.Option("--format", help="For people, for programs, or for a change request."),
    ] = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    force: FORCE = False,
) -> None:
    """Decide: exit 0 promote, 1 roll back, 2 invalid cell or unusable input, 3 collect more, 4 retain."""
    from kvtrace.extras import require_extra

    require_extra("analysis", "decide", "scipy")
    from kvtrace.decide.decide import decide as decide_on
    from kvtrace.decide.evidence import Found, named, read_capacity, read_check, read_quality
    from kvtrace.decide.text import decision_markdown, decision_text
    from kvtrace.serving.contract import load_contract
    from kvtrace.serving.goodput import useful_goodput
    from kvtrace.serving.table import read_serving

    contract = load_contract(policy)
    tables = tuple(read_serving(path) for path in runs)
    variants = list(dict.fromkeys(run.variant for table in tables for run in table.runs))
    chosen = _candidate(candidate, [one for one in variants if one != baseline])
    goodput = _at_rate(useful_goodput(tables, contract, baseline=baseline), {baseline, chosen}, rate)
    answers = None if quality is None else read_quality(quality)
    room = None if capacity is None else read_capacity(capacity)
    clips = None if check is None else read_check(check)
    evidence = [named(path, "serving") for path in runs]
    evidence += [one[1] for one in (answers, room, clips) if one is not None]
    found = decide_on(
        Found(
            baseline=baseline,
            candidate=chosen,
            contract=contract,
            tables=tables,
            goodput=goodput,
            quality=answers[0] if answers is not None else None,
            capacity=room[0] if room is not None else None,
            check=clips[0] if clips is not None else None,
            evidence=(*evidence, named(policy, "policy")),
        )
    )
    if as_json or output_format == "json":
        deliver(found.model_dump_json(indent=2) + "\n", output, force=force, for_programs=True)
    elif output_format == "md":
        deliver(decision_markdown(found), output, force=force)
    else:
        deliver(decision_text(found), output, force=force)
    raise typer.Exit(found.word.exit_code)


def _candidate(asked: str | None, others: list[str]) -> str:
    if asked is None and len(others) == 1:
        return others[0]
    if asked is None or asked not in others:
        there = ", ".join(map(plain, others)) or "none"
        raise InputError(f"--candidate: expected one of the variants beside the baseline: {there}")
    return asked


def _at_rate(report: GoodputReport, variants: set[str], asked: float | None) -> GoodputReport:
    """Return what two variants did at one offered rate."""
    rates = list(dict.fromkeys(run.rate for run in report.runs if run.variant in variants))
    if asked is None and len(rates) > 1:
        there = ", ".join("not said" if one is None else f"{one:g}" for one in rates)
        raise InputError(f"--rate: runs were offered at several rates, {there}; decide at one")
    if asked is not None and asked not in rates:
        raise InputError(f"--rate {asked:g}: no run was offered at it")
    rate = asked if asked is not None else rates[0]
    kept = tuple(one for one in report.variants if one.variant in variants and one.rate == rate)
    missing = variants - {one.variant for one in kept}
    if missing:
        raise InputError(f"--rate: {plain(min(missing))} was not offered at {rate}; both variants must be")
    return report.model_copy(
        update={
            "runs": tuple(one for one in report.runs if one.variant in variants and one.rate == rate),
            "variants": kept,
            "pairs": tuple(one for one in report.pairs if one.candidate in variants and one.rate == rate),
        }
    )
