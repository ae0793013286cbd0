"""Activation drift: values leave the range in one workload, beyond a position or with output length alone.

The scales fit elsewhere: what changed is what the model produces. Quantization that misranks tokens without
leaving the range is another thing, which a replay of K and V cannot see.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvtrace.figures import count, percent
from kvtrace.findings.finding import Finding, Where, confidence_of, tensors_in
from kvtrace.findings.remedies import recalibrate_command
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.clipping import K_CLIPS, V_CLIPS, clipping_heads
from kvtrace.findings.run.example import CLIPS, Clipped, RunExample, RunRule, Traffic
from kvtrace.findings.run.own_dtype import without_fp8
from kvtrace.findings.run.strata import ClippedUnits, Split
from kvtrace.findings.run.strata_split import Drift, Located, locate
from kvtrace.findings.wording import some_heads, tensors_of
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from kvtrace.findings.finding import Head
    from kvtrace.findings.run.case import Case, Subject

_MOST_HEADS: Final = 64
"""Worst heads looked at per tensor: more do not change where the clipping is."""

_UNITS: Final = """
SELECT layer, kv_head, source, request, workload, position_octave, step_octave,
  sum(weight) AS n, coalesce(sum(weight) FILTER (is_clipped), 0) AS x
FROM judged_vectors(chosen_tokens)
WHERE candidate = $candidate AND tensor = $tensor
  AND (layer, kv_head) IN $heads AND is_finite
GROUP BY ALL
ORDER BY ALL
"""
_PLACES: Final = {
    "workload": "workload",
    "phase": "phase",
    "position": "position_octave, octave_from(position_octave) AS position_from",
    "output-length": "step_octave",
}
_EVIDENCE: Final = """
SELECT tensor, :place,
  count(DISTINCT (source, request)) AS num_requests,
  count(*) AS num_vectors,
  count(*) FILTER (is_clipped) AS num_vectors_clipped,
  sum(weight) FILTER (is_clipped) / sum(weight) AS vectors_clipped_frac
FROM judged_vectors(chosen_tokens)
WHERE candidate = $candidate AND is_finite
  AND ((tensor = 'k' AND (layer, kv_head) IN $k_heads)
    OR (tensor = 'v' AND (layer, kv_head) IN $v_heads))
GROUP BY ALL
ORDER BY ALL
"""
_NO_HEAD: Final = [(-1, -1)]


def check(case: Case) -> Iterator[Finding]:
    """Yield a finding per judged candidate and stratum in which heads clip that are fine elsewhere."""
    for subject in case.subjects:
        if not subject.is_valid:
            continue
        same: dict[object, list[Drift]] = defaultdict(list)
        for located in located_clipping(case, subject).values():
            for drift in located.drifts:
                same[drift.split.key].append(drift)
        starts = {one.split.first for found in same.values() for one in found if one.split.kind == "position"}
        for drifts in same.values():
            yield _finding(case, subject, drifts, starts)


def located_clipping(case: Case, subject: Subject) -> dict[str, Located]:
    """Return where the clipping heads of K and of V clip; a tensor without such heads is left out."""
    return case.once("located clipping", subject.name, lambda: _located(case, subject))


def _located(case: Case, subject: Subject) -> dict[str, Located]:
    heads = [one.head for one in clipping_heads(case, subject.name)]
    found = {}
    for tensor in ("k", "v"):
        own = [head for head in heads if head[2] == tensor][:_MOST_HEADS]
        if own:
            found[tensor] = locate(_units(case, subject, tensor, own))
    return found


def _units(case: Case, subject: Subject, tensor: str, heads: Sequence[Head]) -> ClippedUnits:
    sql = bound(_UNITS, candidate=subject.name, tensor=tensor, heads=[head[:2] for head in heads])
    columns = case.columns(sql)
    keys: dict[tuple[Any, ...], int] = {}
    requests: dict[tuple[str, int], int] = {}
    place_of_head = {head[:2]: number for number, head in enumerate(heads)}
    names = ("source", "request", "workload", "position_octave", "step_octave")
    rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
    unit = np.array([keys.setdefault(row, len(keys)) for row in rows])
    pairs = zip(columns["layer"].tolist(), columns["kv_head"].tolist(), strict=True)
    head = np.array([place_of_head[pair] for pair in pairs])
    trials = np.zeros((len(heads), len(keys)))
    events = np.zeros_like(trials)
    trials[head, unit] = columns["n"]
    events[head, unit] = columns["x"]
    return ClippedUnits(
        heads=tuple(heads),
        trials=trials,
        events=events,
        request=np.array([requests.setdefault(key[:2], len(requests)) for key in keys]),
        workload=np.array([key[2] for key in keys], dtype=object),
        position_octave=np.array([key[3] for key in keys]),
        step_octave=np.array([key[4] for key in keys]),
    )


def _finding(case: Case, subject: Subject, drifts: Sequence[Drift], octaves: Collection[int]) -> Finding:
    first = max(drifts, key=lambda drift: drift.inside_frac)
    split = first.split
    heads = tuple(head for drift in drifts for head in drift.heads)
    sql = bound(
        _EVIDENCE.replace(":place", _PLACES[split.kind]),
        candidate=subject.name,
        **{
            f"{tensor}_heads": [head[:2] for head in heads if head[2] == tensor] or _NO_HEAD
            for tensor in ("k", "v")
        },
    )
    alike = (
        f" (this trace cannot tell that from drift {_words(first.same_rows_as)}: the same rows)"
        if first.same_rows_as
        else ""
    )
    confidence = confidence_of(min(first.num_affected, first.num_requests))
    return Finding(
        id=f"drift-{split.kind}",
        severity="warning",
        confidence="medium" if alike and confidence == "high" else confidence,
        candidate=subject.name,
        message=(
            f"activation drift {_words(split)}{alike}: there {percent(first.inside_frac)} of the tokens of "
            f"{count(len(heads), f'{tensors_of(heads)} head')} ({some_heads(heads)}) clip, elsewhere "
            f"{percent(first.outside_frac)}; estimated from {count(first.num_requests, 'request')}, at least "
            f"{percent(first.inside_low)} at 97.5 %"
        ),
        action=_action(case, subject, split, octaves),
        command=recalibrate_command(case, subject),
        evidence=tuple(case.rows(sql, 20)),
        sql=sql,
        heads=heads,
        tensors=tensors_in(heads),
        where=_part(split),
        layers=tuple(sorted({layer for layer, _, _ in heads})),
        num_requests=first.num_requests,
        impact=max(drift.inside_frac * drift.share for drift in drifts),
    )


def _words(split: Split | None) -> str:
    if split is None:
        return ""
    if split.kind == "workload":
        names = [plain(name, 40) for name in split.names]
        if len(names) == 1:
            return f"in workload {names[0]}"
        return f"in workloads {', '.join(names[:-1])} and {names[-1]}"
    if split.kind == "phase":
        return "in prefill alone"
    if split.kind == "position":
        if split.end is None:
            return f"beyond position {2**split.first:,}"
        return f"at positions {2**split.first if split.first else 0:,} to {2**split.end - 1:,}"
    return "with output length, from " + (
        "the first generated token on" if split.first == 0 else f"generated token {2**split.first:,} on"
    )


def _part(split: Split) -> Where:
    first = 2**split.first if split.first else 0
    if split.kind == "output-length":
        first = 2**split.first - 1  # octaves of tokens counted from 1
    return Where(split.kind, split.names, first, None if split.end is None else 2**split.end)


def _action(case: Case, subject: Subject, split: Split, octaves: Collection[int]) -> str:
    """Return what to do. octaves: every position's from which some head drifts; a limit must hold for all."""
    if split.kind == "workload":
        what, it = ("that workload", "it") if len(split.names) == 1 else ("these workloads", "them")
        return f"Calibrate on {what} as well, and until then serve {it} {without_fp8(case, subject)}"
    if split.kind == "phase":
        return f"Calibrate on prompts as well, and until then serve {without_fp8(case, subject)}"
    if split.kind == "position" and split.end is not None:
        return f"Calibrate on these positions as well, and until then serve {without_fp8(case, subject)}"
    if split.kind == "position":
        return (
            "Calibrate on requests that long, and until then limit FP8 to --max-model-len "
            f"{2 ** min(octaves)}"
        )
    return (
        "Calibrate on outputs that long, decode included, and until then cap max_tokens at "
        f"{max(2**split.first - 1, 1)} or serve {without_fp8(case, subject)}"
    )


def _tells_all_of(cause: Finding, symptom: Finding, case: Case) -> bool:
    """Return whether next to nothing of what clips in a tensor's heads clips outside its drifts."""
    if symptom.id not in (K_CLIPS.id, V_CLIPS.id) or not set(cause.heads) & set(symptom.heads):
        return False
    (subject,) = [one for one in case.subjects if one.name == symptom.candidate]
    tensor = symptom.heads[0][2]
    looked_at = symptom.heads[:_MOST_HEADS]
    return set(looked_at) <= located_clipping(case, subject)[tensor].explained


def _rule(name: str, traffic: tuple[Traffic, ...], where: Clipped) -> RunRule:
    head = (0, 0, "k")
    return RunRule(
        id=name,
        headline="The scales no longer cover {tensors} in {heads}",
        what_if="These scales would clip {tensors} in {heads}",
        role="drift",
        loss="clips",
        tier=Tier.place,
        explains=("symptom",),
        accounts_for=_tells_all_of,
        mended_by="recalibrate",
        check=check,
        invalid=(RunExample(traffic=traffic, sums={head: CLIPS}, clipped={head: where}),),
        valid=(
            RunExample(traffic=traffic, sums={head: CLIPS}, clipped={head: Clipped()}),
            RunExample(traffic=traffic),
        ),
    )


WORKLOAD: Final = _rule("drift-workload", (Traffic("code", 4), Traffic("chat")), Clipped(workload="code"))
PHASE: Final = _rule(
    "drift-phase",
    (
        Traffic(requests=6, prompt_tokens=64, positions=(8, 20, 70)),
        Traffic(requests=6, prompt_tokens=16, positions=(8, 20, 70)),
    ),
    Clipped(in_prefill=True),
)
POSITION: Final = _rule(
    "drift-position", (Traffic(positions=(16, 32, 64, 1_024, 2_048)),), Clipped(from_position=1_024)
)
OUTPUT_LENGTH: Final = _rule(
    "drift-output-length",
    (
        Traffic(requests=4, prompt_tokens=16, positions=(8, 20, 100)),
        Traffic(requests=4, prompt_tokens=256, positions=(100, 260, 340)),
    ),
    Clipped(from_step=64),
)
