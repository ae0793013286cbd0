"""What the rules look at: a run through its views, and the candidates that are judged."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kvtrace.findings.run.stored_evidence import stored_evidence
from kvtrace.numerics.engines import ENGINES
from kvtrace.numerics.formats import FORMATS
from kvtrace.query import connect_to_judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.findings.finding import Finding
    from kvtrace.query import RunConnection
    from kvtrace.runs.open import Run

Row = dict[str, Any]
_Made = TypeVar("_Made")
_PARAMETER: Final = re.compile(r"\$([a-z_]+)")

_CANDIDATES: Final = """
SELECT *, pow(10, -rounding_floor_db / 10) AS floor
FROM candidates
ORDER BY ordinal
"""
_IN_EFFECT: Final = """
SELECT candidate,
  bool_and(effective_scale IS NOT DISTINCT FROM scale
    OR is_same_scale(scale, effective_scale)) AS is_same
FROM scales
  JOIN candidates USING (candidate)
  JOIN effective_scales USING (source, layer, kv_head, tensor)
WHERE kind = 'artifact'
GROUP BY candidate
ORDER BY candidate
"""
_HEADS: Final = """
SELECT candidate, tensor, layer, kv_head, covered_amax, max_abs, flushed_frac,
  share(w_sq_clip_error, w_sq_signal) AS clip_error,
  share(w_sq_other_error, w_sq_signal) AS other_error,
  channel_count, ordinary_error, ordinary_flushed_frac, outlier_signal_frac
FROM value_sums(chosen_cells)
  JOIN covered_heads USING (candidate, tensor, layer, kv_head)
  LEFT JOIN channel_classes USING (candidate, tensor, layer, kv_head)
WHERE scale IS NOT NULL
ORDER BY candidate, tensor, layer, kv_head
"""
_CLIPPING_STRATA: Final = """
SELECT candidate, tensor, layer, kv_head, workload, phase, position_octave,
  share(sum(weight * sum_sq_clip_error), sum(weight * sum_sq_signal))
    AS clip_error,
  avg(clip_error) OVER (
    PARTITION BY candidate, tensor, workload, phase, position_octave
  ) AS mean_clip_error
FROM chosen_cells JOIN sampling USING (source, sampling_id)
WHERE candidate IN $candidates
GROUP BY candidate, tensor, layer, kv_head, GROUPING SETS ((), (workload), (phase), (position_octave))
QUALIFY clip_error > $least
ORDER BY ALL
"""
_HEADS_AT_ONCE: Final = 10_000
"""Heads of candidates whose strata are held at the same time."""
_AFFECTED: Final = """
SELECT workload, phase, position_octave,
  count(DISTINCT (source, request)) AS num_requests
FROM tokens
GROUP BY GROUPING SETS ((), (workload), (phase), (position_octave))
ORDER BY ALL
"""
_FINDINGS: Final = """
SELECT source, candidate, id, severity, message, action, layers, evidence
FROM findings
WHERE candidate = $candidate
ORDER BY source, ordinal
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A candidate that is judged."""

    name: str
    kind: str
    status: str
    reason: str | None
    """Why it is invalid, in words; None where it is valid."""
    reason_id: str | None
    """Which reason that is (kvtrace.errors.InvalidReason); None in a run of an earlier schema version too."""
    in_effect: bool
    """Whether these scales are what the captured engine used."""
    written_otherwise: bool
    """Whether they are, but that engine wrote its cache in another way than the replay."""
    granularity: str | None
    engine: str | None
    """Whose numerics the replay used."""
    format: str | None
    artifact: str | None
    floor: float
    """Σ error² / Σ x² that rounding alone leaves in its format."""
    clips_from: float
    """Largest magnitude over covered one beyond which values are clipped; up to it they become MAX."""

    @property
    def is_valid(self) -> bool:
        """Whether there are sums under it."""
        return self.status == "valid"


class Case:
    """A run under diagnosis. Queries are run once, however many rules ask."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.found: list[Finding] = []
        """What the rules that were asked before found."""
        self._connection = connect_to_judge(run)
        self._known: dict[tuple[str, str], Any] = {}
        self._strata: dict[str, list[Row]] = {}
        """Of a few candidates at a time: all would be millions."""

    def once(self, what: str, candidate: str, make: Callable[[], _Made]) -> _Made:
        """Return what `make` returns, which is called the first time alone."""
        if (what, candidate) not in self._known:
            self._known[what, candidate] = make()
        made: _Made = self._known[what, candidate]
        return made

    def rows(self, sql: str, limit: int | None = None) -> list[Row]:
        """Return the rows of a SELECT over the run's views, as column → value."""
        cursor = self._connection.execute(sql)
        names = [entry[0] for entry in cursor.description or ()]
        found = cursor.fetchall() if limit is None else cursor.fetchmany(limit)
        return [dict(zip(names, row, strict=True)) for row in found]

    def columns(self, sql: str) -> dict[str, Any]:
        """Return the same as one array a column, for many rows."""
        found: dict[str, Any] = self._connection.execute(sql).fetchnumpy()
        return found

    @cached_property
    def subjects(self) -> tuple[Subject, ...]:
        """Return what is judged: the scales in effect, then each artifact; the default 1.0 if there is none.

        Effective scales that are an artifact's are judged once, under the artifact's name.
        """
        kinds = {one.kind for one in self.quantizing}
        wanted = {"effective", "artifact"} if kinds & {"effective", "artifact"} else {"unit"}
        is_known = any(one.in_effect and one.kind == "artifact" for one in self.quantizing)
        return tuple(
            one
            for one in self.quantizing
            if one.kind in wanted and not (one.kind == "effective" and is_known)
        )

    @cached_property
    def quantizing(self) -> tuple[Subject, ...]:
        """Return every candidate but BF16, judged or not, in the order asked for."""
        same = {row["candidate"] for row in self.rows(_IN_EFFECT) if row["is_same"]}
        found = self.rows(_CANDIDATES)
        otherwise = any(row["kind"] == "effective" and row["hypothetical"] for row in found)
        return tuple(
            Subject(
                name=row["candidate"],
                kind=row["kind"],
                status=row["status"],
                reason=row["reason"],
                reason_id=row["reason_id"],
                in_effect=row["kind"] == "effective" or row["candidate"] in same,
                written_otherwise=otherwise and (row["kind"] == "effective" or row["candidate"] in same),
                granularity=row["granularity"],
                engine=row["engine"],
                format=row["format"],
                artifact=row["artifact"],
                floor=row["floor"] or 0.0,
                clips_from=_clips_from(row["engine"], row["format"]),
            )
            for row in found
            if row["kind"] != "bf16"
        )

    def connection_beside(self) -> RunConnection:
        """Return another connection over the same views, for a thread beside the one that asks the rules."""
        return self._connection.cursor()

    def beside(self) -> Case:
        """Return a case of the default and effective scales that are not judged, over the same connection."""
        other = Case.__new__(Case)
        other.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "subjects"}
        judged = {one.name for one in self.subjects}
        other.__dict__["subjects"] = tuple(
            one for one in self.quantizing if one.name not in judged and one.kind in ("unit", "effective")
        )
        other.found = []
        return other

    @cached_property
    def num_requests(self) -> dict[tuple[str | None, str | None, int | None], int]:
        """Return captured requests of (workload, phase, position_octave), None standing for all."""
        return {
            (row["workload"], row["phase"], row["position_octave"]): row["num_requests"]
            for row in self.rows(_AFFECTED)
        }

    def whole_heads(self, candidate: str) -> list[Row]:
        """Return what each head covers and loses over everything; unquantized ones are left out.

        clip_error and other_error are shares of Σ x²; ordinary_error is the latter of the ordinary channels
        alone, where a few others hold most of Σ x², and None elsewhere.
        """
        return self.once("heads", "", self._whole_heads).get(candidate, [])

    def clipping_strata(self, candidate: str, least: float) -> list[Row]:
        """Return the (head, stratum) pairs in which clipping costs more than `least` of Σ x².

        A stratum is everything, a workload, a phase or a position octave; its key is `stratum_of`.
        mean_clip_error is over all heads of the tensor there. Asked for in the order of `subjects`, every
        row is read once; `least` must not change.
        """
        if candidate not in self._strata:
            together = self._asked_together(candidate)
            found: dict[str, list[Row]] = {name: [] for name in together}
            for row in self.rows(bound(_CLIPPING_STRATA, candidates=together, least=least)):
                found[row["candidate"]].append(row)
            self._strata = found
        return self._strata[candidate]

    def _asked_together(self, candidate: str) -> list[str]:
        """Return candidates to read at once: a run of many would be read once for each, or held whole."""
        names = [one.name for one in self.subjects if one.is_valid]
        if candidate not in names:
            return [candidate]
        size = max(_HEADS_AT_ONCE // max(len(self.whole_heads(candidate)), 1), 1)
        first = names.index(candidate) // size * size
        return names[first : first + size]

    def stored_findings(self, candidate: str) -> list[Row]:
        """Return what the audit of a candidate's artifact found when the run was made, by source.

        Raises IntegrityError: the evidence of one is none that an audit writes.
        """
        return self.once("findings", candidate, lambda: self._stored_findings(candidate))

    def has_stored(self, candidate: str, finding: str, fact: str) -> bool:
        """Return whether the audit found this, with evidence that holds a fact."""
        return any(
            row["id"] == finding and row["evidence"].get(fact) for row in self.stored_findings(candidate)
        )

    def _stored_findings(self, candidate: str) -> list[Row]:
        rows = self.rows(bound(_FINDINGS, candidate=candidate))
        return [row | {"evidence": stored_evidence(row, self.run)} for row in rows]

    def _whole_heads(self) -> dict[str, list[Row]]:
        # All candidates at once: a run of many would otherwise be read once for each.
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows(bound(_HEADS)):
            found[row["candidate"]].append(row)
        return found


def _clips_from(engine: str | None, name: str | None) -> float:
    if engine not in ENGINES or name not in FORMATS:
        return 1.0
    threshold = FORMATS[name].clip_threshold(ENGINES[engine].rounding)
    return threshold / FORMATS[name].max_value


def stratum_of(row: Row) -> tuple[str | None, str | None, int | None]:
    """Return a row's key of `Case.num_requests`."""
    return row["workload"], row["phase"], row["position_octave"]


def bound(sql: str, **values: str | float | list[tuple[int, int]] | list[str]) -> str:
    """Return the SQL with `$name` replaced by literals, so that it can be run by hand.

    >>> bound("WHERE candidate = $candidate", candidate="a'b")
    "WHERE candidate = 'a''b'"
    >>> bound("WHERE (layer, kv_head) IN $heads", heads=[(0, 1), (2, 3)])
    'WHERE (layer, kv_head) IN ((0, 1), (2, 3))'
    """
    return _PARAMETER.sub(lambda match: _literal(values[match[1]]), sql).strip()


def _literal(value: str | float | list[tuple[int, int]] | list[str] | tuple[int, int]) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(_literal, value)) + ")"
    return repr(value)
