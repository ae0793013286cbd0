"""E5M2 has two bits of mantissa where E4M3 has three: no scale makes up for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.findings.finding import Finding
from kvtrace.findings.rule import Tier
from kvtrace.findings.run.case import bound
from kvtrace.findings.run.example import RunExample, RunRule
from kvtrace.numerics.rounding_floor import rounding_floor_db

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.findings.run.case import Case

_EVIDENCE: Final = """
SELECT tensor, num_values, num_clipped, sqnr_db
FROM value_totals(chosen_cells)
WHERE candidate = $candidate
ORDER BY tensor
"""


def check(case: Case) -> Iterator[Finding]:
    """Yield a warning where a cache in E5M2 ran, a note where it is tried: E4M3 takes as many bytes."""
    for subject in case.subjects:
        own = rounding_floor_db(subject.engine, subject.format)
        finer = rounding_floor_db(subject.engine, "e4m3fn")
        if not subject.is_valid or subject.format != "e5m2" or own is None or finer is None:
            continue
        sql = bound(_EVIDENCE, candidate=subject.name)
        yield Finding(
            id="e5m2-rounding",
            severity="warning" if subject.in_effect and not subject.written_otherwise else "note",
            candidate=subject.name,
            message=(
                f"E5M2 rounds to two bits: that alone leaves {own:.0f} dB where E4M3 leaves {finer:.0f} in "
                "as many bytes, and no scale helps"
            ),
            action="Serve fp8_e4m3 with calibrated scales. Where the device takes fp8_e5m2 alone (vLLM: "
            "before compute capability 8.9), a cache in the model's own dtype loses nothing",
            evidence=tuple(case.rows(sql)),
            sql=sql,
        )


RULE: Final = RunRule(
    id="e5m2-rounding",
    headline="E5M2 rounds more coarsely than any scale can mend",
    about="format",
    role="cause",
    tier=Tier.rounding_floor,
    mended_by="change setup",
    check=check,
    invalid=(RunExample(fp8_format="e5m2"), RunExample(fp8_format="e5m2", live=1.5)),
    valid=(RunExample(), RunExample(cache_dtype="fp8_e5m2")),
)
