"""From what was found to the answer: its state, what it is about, where, how much, what to do, how sure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, Literal

from kvtrace.figures import count, percent, times
from kvtrace.findings.remedies import checkpoint_of_run
from kvtrace.plain_text import plain
from kvtrace.report.answer.action import action_of
from kvtrace.report.answer.choices import choices
from kvtrace.report.answer.model import SIGNS, Answer, HarmedHead, NotMeasured, Sure
from kvtrace.report.answer.questions import three_questions
from kvtrace.report.answer.told import NAME, Told, head_of, range_used
from kvtrace.report.answer.words import head_name, heads_in_words, layers_in_words, where_in_words
from kvtrace.report.harm.words import harm_sentence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvtrace.findings.finding import Head

_MOST_OTHERS: Final = 3
_NAME_OF_MODEL: Final = 400
_PATH: Final = 1_000


def make_answer(told: Told, places: Mapping[tuple[str, Head], str], *, run_kept: bool = True) -> Answer:
    """Return the answer on a run.

    places: (candidate, head) → where it clips most, in words; a head that clips nowhere is left out.
    run_kept: whether the run outlives the report.
    """
    return Answer(
        state=told.state,
        kind=told.kind,
        headline=told.headline,
        candidate=told.subject.name if told.subject else None,
        most_harmed=_harmed(told.heads),
        where=tuple(_where(told, places)),
        matters=tuple(_matters(told)),
        action=action_of(told.case, told.subject, told.first, is_served=told.is_served),
        sure=_sure(told),
        questions=three_questions(told),
        compared=tuple(choices(told, run_kept=run_kept)),
        ruler=tuple(told.ruler()),
        not_measured=_not_measured(told),
    )


def _harmed(heads: Sequence[Head]) -> HarmedHead | None:
    if not heads:
        return None
    layer, kv_head, tensor = heads[0]
    return HarmedHead(layer=layer, kv_head=kv_head, tensor="k" if tensor == "k" else "v")


def _where(told: Told, places: Mapping[tuple[str, Head], str]) -> list[str]:
    if told.subject is None or not told.heads:
        return []
    rows = {head_of(row): row for row in told.rows(told.subject)}
    losing = [head for head in told.heads if rows[head]["clip_error"]]
    most = told.heads[0]
    if told.state == "sound" or told.first is None:
        if losing:
            lost = percent(rows[most]["clip_error"])
            return [f"loses most to clipping: {head_name(most)}, {lost} of its energy"]
        return [f"closest to the edge: {head_name(most)}, {times(range_used(rows[most]))} of what is covered"]
    if not losing:
        return [layers_in_words(told.first.layers)]
    part = told.first.where
    stratum = where_in_words(part) if part else places.get((told.subject.name, most))
    return [heads_in_words(losing), *([stratum] if stratum else [])]


def _matters(told: Told) -> list[str]:
    if not told.valid:
        return [f"{plain(one.name, NAME)} {told.in_words(one)}" for one in told.case.subjects[:_MOST_OTHERS]]
    if told.subject is None or not told.heads:
        return []
    rows = told.rows(told.subject)
    (first,) = [row for row in rows if head_of(row) == told.heads[0]]
    said = []
    if told.state != "sound" and first["clip_error"]:
        energy = percent(first["clip_error"])
        said.append(f"{head_name(told.heads[0])} loses {energy} of its energy to clipping")
        said.append(told.in_words(told.subject))
    elif flushed := max((row["flushed_frac"] or 0.0 for row in rows), default=0.0):
        said.append(f"at most {percent(flushed)} of a head's values are flushed to 0")
    said += _others(told)
    if told.harm is None or told.own_harm is None:
        asked = told.case.run.record.replays_attention
        return [*said, f"harm was not measured: {'no queries' if asked else 'it was left out'}"]
    return [harm_sentence(told.harm, told.own_harm), *said]


def _not_measured(told: Told) -> tuple[NotMeasured, ...]:
    """Return what the report lacks, each with a command that runs as it is, where there is one."""
    first = told.case.run.record.sources[0]
    report = f"kvtrace report {shlex.quote(plain(first.path, _PATH))}"
    if told.harm is None and not told.case.run.record.replays_attention:
        lacking = [NotMeasured("harm", "it was left out (--no-attention)", report)]
    elif told.harm is None:
        model = shlex.quote(plain(first.model.name, _NAME_OF_MODEL))
        capture = f"kvtrace capture flags --model {model} --queries probe -o traces-with-queries"
        lacking = [NotMeasured("harm", "the trace holds no queries", capture)]
    elif told.harm.knowledge == "heads":
        model_here = checkpoint_of_run(told.case)
        command = None if model_here is None else f"{report} --checkpoint {shlex.quote(model_here)}"
        lacking = [NotMeasured("harm by layer", "W_O is read from the model: give --checkpoint", command)]
    elif told.harm.knowledge == "projected":
        why = "the trace does not hold it; kvtrace capture run measures it in an eager engine"
        lacking = [NotMeasured("harm of the residual stream", why, None)]
    else:
        lacking = []
    return (*lacking, *_NOT_MEASURED)


def _others(told: Told) -> list[str]:
    """Return what becomes of the scales that the answer is not about."""
    others = [one for one in told.case.subjects if one is not told.subject]
    named = [f"{plain(one.name, NAME)} {SIGNS[told.shown_state(one)]}" for one in others[:_MOST_OTHERS]]
    more = len(others) - _MOST_OTHERS
    also = [f"{more} more"] if more > 0 else []
    return [f"beside it {', '.join(named + also)}"] if named else []


def _ran(told: Told) -> str:
    subject = told.subject
    if not told.valid:
        return "nothing was judged"
    if subject is None or not subject.in_effect:
        return "what-if"
    if not subject.written_otherwise:
        return "as served"
    return f"what-if: these scales ran, but not as {subject.engine} in {subject.format} would write them"


def _sure(told: Told) -> Sure:
    requests = told.case.num_requests.get((None, None, None), 0)
    parts = [count(requests, "request"), _ran(told)]
    lacking = [one for one in told.diagnosis.findings if one.id == "coverage"]
    level: Literal["high", "medium", "low"]
    if not told.valid:
        level = "high"
    elif told.first is not None and told.first.confidence != "certain":
        level = told.first.confidence
    elif told.state == "too few" or requests < 3:
        level = "low"
    else:
        level = "medium" if lacking or not told.is_served else "high"
    thin = [
        f"{plain(row['workload'], NAME)} has {count(row['num_captured_requests'], 'request')}, needs 5"
        for one in lacking
        for row in one.evidence
        if row["num_sampled_requests"] > 0 and row["num_captured_requests"] < 5
    ]
    return Sure(level=level, text="; ".join([", ".join(parts), *thin[:_MOST_OTHERS]]))


_NOT_MEASURED: Final = (
    NotMeasured("answers lost", "no checked answers were given", None),
    NotMeasured("useful goodput and room", "no serving records were given", None),
)
