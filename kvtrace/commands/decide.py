"""`kvtrace decide`: may a candidate go out, by limits written beforehand."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvtrace.commands.options import FORCE, JSON, OUTPUT, check_absent, deliver
from kvtrace.errors import InputError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from kvtrace.decide.decision import Decision
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
    report: Annotated[
        Path | None, typer.Option(help="What kvtrace report --json wrote of a trace with queries: its harm.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="The offered rate to decide at, where runs have several.")
    ] = None,
    output_format: Annotated[
        Literal["text", "json", "md", "html"],
        typer.Option("--format", help="For people, for programs, for a change request, a page."),
    ] = "text",
    as_json: JSON = False,
    output: OUTPUT = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write the page there too, as --format html gives it.")
    ] = None,
    force: FORCE = False,
) -> None:
    """Decide: exit 0 promote, 1 roll back, 2 invalid cell or unusable input, 3 collect more, 4 retain."""
    from kvtrace.extras import require_extra

    require_extra("analysis", "decide", "scipy")
    if as_json and output_format not in ("text", "json"):
        raise InputError(f"--json and --format {output_format} contradict each other; give one of them")
    chosen = "json" if as_json else output_format
    if chosen == "html" and page is not None:
        raise InputError("--page and --format html both give the page; leave one out")
    if chosen == "html" or page is not None:
        require_extra("report", "decide --format html or --page", "jinja2")
    from kvtrace.decide.decide import decide as decide_on
    from kvtrace.decide.evidence import Found, named, read_capacity, read_check, read_harm, read_quality
    from kvtrace.serving.contract import load_contract
    from kvtrace.serving.goodput import useful_goodput
    from kvtrace.serving.table import read_serving

    for path in (output, page):
        check_absent(path, force=force)
    contract = load_contract(policy)
    tables = tuple(read_serving(path) for path in runs)
    variants = list(dict.fromkeys(name for table in tables for name in table.variants))
    chosen_candidate = _candidate(candidate, [one for one in variants if one != baseline])
    goodput = _at_rate(
        useful_goodput(tables, contract, baseline=baseline), {baseline, chosen_candidate}, rate
    )
    answers = None if quality is None else read_quality(quality)
    room = None if capacity is None else read_capacity(capacity)
    clips = None if check is None else read_check(check)
    harm = None if report is None else read_harm(report)
    evidence = [named(path, "serving") for path in runs]
    evidence += [one[1] for one in (answers, room, clips, harm) if one is not None]
    found = decide_on(
        Found(
            baseline=baseline,
            candidate=chosen_candidate,
            contract=contract,
            tables=tables,
            goodput=goodput,
            quality=answers[0] if answers is not None else None,
            capacity=room[0] if room is not None else None,
            check=clips[0] if clips is not None else None,
            harm=harm[0] if harm is not None else None,
            evidence=(*evidence, named(policy, "policy")),
        )
    )
    if page is not None:
        deliver(_written("html", found), page, force=force)
    deliver(_written(chosen, found), output, force=force, for_programs=chosen in ("json", "html"))
    raise typer.Exit(found.word.exit_code)


def _written(chosen: str, found: Decision) -> str:
    if chosen == "json":
        return found.model_dump_json(indent=2) + "\n"
    if chosen == "html":
        from kvtrace.decide.page import decision_html

        return decision_html(found)
    if chosen == "md":
        from kvtrace.decide.markdown import decision_markdown

        return decision_markdown(found)
    from kvtrace.decide.text import decision_text

    return decision_text(found)


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
    kept = tuple(
        one
        for one in report.variants
        if one.variant in variants and (one.rate == rate or one.unsupported is not None)
    )
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
