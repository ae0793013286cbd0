"""Harm from the queries of `queries/`: candidates, layers, and the front of harm against bytes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from kvtrace.report.harm.model import CandidateHarm, Harm, LayerHarm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Rows = Callable[..., list[dict[str, Any]]]
    """(name of a query, parameters) → its rows."""

_BY: Final = ("workload", "position", "step")


def build_harm(ask: Rows, num_bytes: Mapping[str, int | None]) -> Harm | None:
    """Return the harm of every candidate; None where no queries were captured.

    num_bytes: candidate → bytes a token; None: not known.
    """
    found = ask("harm")
    if not found:
        return None
    candidates = tuple(_of(CandidateHarm, row) for row in found)
    sized = {
        one.candidate: (size, one.harm)
        for one in candidates
        if (size := num_bytes[one.candidate]) is not None and one.harm is not None
    }
    fp8 = min(
        (sized[one.candidate][0] for one in candidates if one.kind == "fresh" and one.candidate in sized),
        default=0,
    )
    small = tuple(name for name, (size, _) in sized.items() if size <= fp8)
    return Harm(
        knowledge=found[0]["knowledge"],
        candidates=candidates,
        layers=tuple(_of(LayerHarm, row) for row in ask("harm_by_layer")),
        strata=(),
        front=front(sized),
        smallest=min(small, key=lambda name: (sized[name][1], name)) if len(small) > 1 else None,
        no_larger=small,
    )


def with_strata(harm: Harm, ask: Rows, candidate: str | None) -> Harm:
    """Return the same with one candidate's harm by part of the traffic."""
    if harm.of(candidate) is None:
        return harm
    rows = [row for by in _BY for row in ask("harm", by=by, candidate=candidate)]
    return replace(harm, strata=tuple(_of(CandidateHarm, row) for row in rows))


def front(sized: Mapping[str, tuple[int, float]]) -> tuple[str, ...]:
    """Return those that none beats in both, fewest bytes first.

    sized: candidate → (bytes a token, harm).

    >>> front({"bf16": (256, 0.0), "fp8": (128, 0.4), "stale": (128, 7.9), "int8": (136, 0.04)})
    ('fp8', 'int8', 'bf16')
    """
    kept: list[str] = []
    for name in sorted(sized, key=lambda one: sized[one]):
        if not kept or sized[name][1] < sized[kept[-1]][1]:
            kept.append(name)
    return tuple(kept)


def _of(part: type[Any], row: dict[str, Any]) -> Any:
    return part(**{field.name: row[field.name] for field in fields(part)})
