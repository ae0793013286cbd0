"""What a backend really does with a cache format, beyond the rule that was replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import RunExample, RunRule
from kvtrace.formats import parse_format
from kvtrace.formats.layered import is_format
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case

E5M2_AS_E4M3: Final = "e5m2-stored-as-e4m3"
OUTPUT_ROUNDED: Final = "output-rounded-to-fp8"
_ACTIONS: Final = {
    E5M2_AS_E4M3: "Serve fp8_e5m2 with FLASHINFER, whose cache is as replayed; elsewhere ask for fp8_e4m3.",
    OUTPUT_ROUNDED: "On SM100 judge the answers too: this loss comes after K and V, in no number here.",
}
"""Facts of `kvtrace.formats` that numbers of a replay leave out, and what to do."""
_STATIC_E5M2: Final = "e5m2"
"""As static FP8 is called in a run: the format, not vLLM's cache dtype."""
_MOST_NAMED: Final = 3

_FORMATS: Final = """
SELECT candidate, format
FROM candidates
WHERE status = 'valid' AND format IS NOT NULL
ORDER BY ordinal
"""
_EVIDENCE: Final = """
SELECT candidate, kind, format
FROM candidates
WHERE candidate IN $candidates
ORDER BY ordinal
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield a note for each such fact of the formats that are compared."""
    concerned: dict[str, dict[str, str]] = {}
    for row in case.rows(_FORMATS):
        name = "fp8_e5m2" if row["format"] == _STATIC_E5M2 else str(row["format"])
        for fact in parse_format(name).facts if is_format(name) else ():
            if fact.id in _ACTIONS:
                concerned.setdefault(fact.id, {})[row["candidate"]] = fact.text
    for rule, texts in concerned.items():
        names = list(texts)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        shown = ", ".join(plain(name, 60) for name in names[:_MOST_NAMED])
        sql = bound(_EVIDENCE, candidates=names)
        yield Finding(
            id=rule,
            severity="note",
            message=f"{shown}{more}: {texts[names[0]]}",
            action=_ACTIONS[rule],
            evidence=tuple(case.rows(sql)),
            sql=sql,
        )


def _rule(rule: str, headline: str, cache_dtype: str, other: str) -> RunRule:
    return RunRule(
        id=rule,
        headline=headline,
        role="note",
        tier=Tier.stored_rounding,
        mended_by="change setup",
        check=check,
        invalid=(RunExample(cache_dtype=cache_dtype), RunExample(cache_dtype=f"auto/0:{cache_dtype}")),
        valid=(RunExample(), RunExample(cache_dtype=other)),
    )


E5M2: Final = _rule(E5M2_AS_E4M3, "A backend stores E4M3 where fp8_e5m2 is asked for", "fp8_e5m2", "nvfp4")
OUTPUT: Final = _rule(OUTPUT_ROUNDED, "A backend rounds the attention output to FP8", "nvfp4", "fp8_e5m2")
