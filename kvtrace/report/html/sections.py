"""The page but for its charts: the answer, and each section that there is data for, with its state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kvtrace.plain_text import plain
from kvtrace.report.bins import BINS, NOTHING, RANGE_BINS
from kvtrace.report.html.answer import answer_parts, mark
from kvtrace.report.html.evidence import evidence_parts
from kvtrace.report.html.formats import formats_parts
from kvtrace.report.html.harm import front_parts, harm_parts
from kvtrace.report.html.heads import heads_parts
from kvtrace.report.html.ruler import ruler_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.report.answer.model import State
    from kvtrace.report.html.tables import ChartData
    from kvtrace.report.sections import Report
    from kvtrace.runs.manifest import ServingManifest

_NAME: Final = 200


def sections(
    report: Report, data: ChartData, page: dict[str, Any], serving: ServingManifest
) -> dict[str, Any]:
    """Return what the template shows as text and tables; every name is plain text."""
    has_heads = bool(data.candidates and data.heads)
    has_two = has_heads and len(data.candidates) > 1
    answer = answer_parts(report.answer, ruler_of(report.answer, report.shown))
    evidence = evidence_parts(report, data, page["workloads"], serving)
    state = report.answer.state
    harm = harm_parts(report)
    asked = {one.id: one.question for one in report.answer.questions}

    def entry(name: str, title: str, state: State, *, is_there: bool = True, script: bool = False) -> Any:
        return {"id": name, "title": title, "state": state, "is_there": is_there, "needs_js": script}

    groups = (
        ("", [entry("answer", "Answer", state)]),
        (
            asked["scales"],
            [
                entry("harm", "Harm", state, is_there=harm is not None),
                entry("heads", "Heads", state, is_there=has_heads),
                entry("before-and-after", "Before and after", state, is_there=has_two, script=True),
            ],
        ),
        (asked["format"], [entry("formats", "Formats", state)]),
        (
            "What it rests on",
            [
                entry("evidence", "Evidence", evidence["state"]),
                entry("not-measured", "Not measured", "not measured"),
            ],
        ),
    )
    return {
        "names": ", ".join(plain(source.name, _NAME) for source in report.sources),
        "subtitle": " · ".join(_subtitle(report)),
        "navigation": [
            (title, [one | {"mark": mark(one["state"])} for one in listed if one["is_there"]])
            for title, listed in groups
        ],
        "links": _links(has_harm=harm is not None, has_heads=has_heads),
        "harm": harm,
        "front": front_parts(report),
        "answer": answer,
        "has_heads": has_heads,
        "has_two": has_two,
        "heads": heads_parts(report.answer, data, page),
        "formats": formats_parts(report, data),
        "evidence": evidence,
        "bins": {"loss": [NOTHING, *BINS], "range": RANGE_BINS},
        "not_visible": ", ".join(report.not_visible),
        "version": report.kvtrace_version,
    }


def _links(*, has_harm: bool, has_heads: bool) -> dict[str, str]:
    """Return the section that each question's answer rests on, where there is one."""
    own = "harm" if has_harm else "heads" if has_heads else "evidence"
    return {"scales": own} | ({"format": "formats"} if has_harm else {})


def _subtitle(report: Report) -> Iterator[str]:
    """Yield model, cache, engine and time of capture."""
    yield ", ".join(sorted({plain(source.model, _NAME) for source in report.sources}))
    for source in report.sources[:1]:
        yield f"{plain(', '.join(source.cache_dtypes) or source.kv_cache_dtype, 60)} cache"
        yield f"{plain(source.engine, 40)} {plain(source.engine_version, 40)} on {plain(source.device, 60)}"
        yield datetime.fromtimestamp(source.captured_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if len(report.sources) > 1:
        yield f"and {len(report.sources) - 1} more"
