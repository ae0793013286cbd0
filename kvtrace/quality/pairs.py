"""Answers of several variants to the same prompts, brought together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kvtrace.errors import OutcomesError
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from kvtrace.outcomes.outcome import Outcome

    PairKey = tuple[str, str, int]
    Answers = Mapping[PairKey, Outcome]

ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Judged answers of two or three variants, aligned; every array is [pairs], in the order of the keys."""

    keys: tuple[PairKey, ...]
    cluster: NDArray[np.int64]
    """0 to the number of clusters − 1."""
    baseline: NDArray[np.bool_]
    """Whether it failed; so are the others."""
    candidate: NDArray[np.bool_]
    noise: NDArray[np.bool_] | None
    """The second run of the baseline; None where it lacks one of these answers."""


def by_variant(rows: Iterable[Outcome]) -> dict[str, Answers]:
    """Return each variant's answers by pair key, sorted, so that the order of files changes nothing.

    Raises OutcomesError: a variant has two answers to one key, or variants differ in a key's prompt, cluster
    or tags.
    """
    found: dict[str, dict[PairKey, Outcome]] = {}
    for row in rows:
        answers = found.setdefault(row.variant, {})
        if row.pair_key in answers:
            raise OutcomesError(f"variant {plain(row.variant)} has two answers to id {plain(row.id)}")
        answers[row.pair_key] = row
    _check_same_prompts(found)
    return {variant: dict(sorted(found[variant].items())) for variant in sorted(found)}


def pair(baseline: Answers, candidate: Answers, noise: Answers | None, segment: str) -> Pairs:
    """Return the judged pairs of a segment: `all`, or name=value of a tag, or task=name."""
    keys = [
        key
        for key, row in baseline.items()
        if key in candidate
        and in_segment(row, segment)
        and "unjudged" not in (row.outcome, candidate[key].outcome)
    ]
    clusters: dict[tuple[str, ...], int] = {}
    has_noise = noise is not None and all(key in noise and noise[key].outcome != "unjudged" for key in keys)
    return Pairs(
        tuple(keys),
        np.array([clusters.setdefault(cluster_of(baseline[key]), len(clusters)) for key in keys], np.int64),
        _failed(baseline, keys),
        _failed(candidate, keys),
        _failed(noise, keys) if has_noise and noise is not None else None,
    )


def in_segment(row: Outcome, segment: str) -> bool:
    """Return whether an answer is in a segment."""
    if segment == ALL:
        return True
    name, _, value = segment.partition("=")
    return row.task == value if name == "task" else (name, value) in row.tags


def data_digest(variants: Mapping[str, Answers]) -> str:
    """Return a digest of who answered what how: the same data are the same look at them."""
    digest = hashlib.sha256()
    for variant, answers in variants.items():
        for key, row in answers.items():
            digest.update(repr((variant, key, row.outcome)).encode())
    return digest.hexdigest()


def cluster_of(row: Outcome) -> tuple[str, ...]:
    """Return what an answer shares with others; repetitions of one prompt always share it."""
    return (row.task, row.id) if row.cluster is None else (row.cluster,)


def _failed(answers: Answers, keys: list[PairKey]) -> NDArray[np.bool_]:
    return np.array([not answers[key].passed for key in keys], dtype=np.bool_)


def _check_same_prompts(variants: Mapping[str, Answers]) -> None:
    first: dict[PairKey, Outcome] = {}
    digests: dict[PairKey, Outcome] = {}
    differing: list[tuple[Outcome, Outcome, str]] = []
    for answers in variants.values():
        for key, row in answers.items():
            one = first.setdefault(key, row)
            if (one.cluster, one.tags) != (row.cluster, row.tags):
                differing.append((one, row, "have different clusters or tags"))
            if row.prompt_digest is not None:
                seen = digests.setdefault(key, row)
                if seen.prompt_digest != row.prompt_digest:
                    differing.append((seen, row, "are not to the same prompt"))
    if differing:
        one, other, what = differing[0]
        raise OutcomesError(
            f"id {plain(one.id)}: the answers of {plain(one.variant)} and {plain(other.variant)} {what}; "
            f"{len(differing):,} differ so. Evaluate each variant on the same file of prompts"
        )
