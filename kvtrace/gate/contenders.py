"""The candidates of one or several runs: what each is, and which other it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvtrace.errors import ComparisonError
from kvtrace.gate.comparison import Role
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.query import RunConnection
    from kvtrace.runs.open import Run

_CANDIDATES: Final = """
SELECT candidate, kind, status, reason, note, hypothetical, engine, format, granularity, artifact,
  artifact_sha256, coalesce(layers, []) AS layers
FROM candidates LEFT JOIN layers_left_out USING (candidate)
ORDER BY ordinal
"""
_FORMATS: Final = ("online", "format")
"""Kinds that may keep layers native by themselves."""
_ORDER: Final = tuple(Role)


@dataclass(frozen=True, slots=True)
class Contender:
    """One candidate of one run."""

    run: Run
    connection: RunConnection
    candidate: str
    kind: str
    status: str
    reason: str | None
    note: str | None
    hypothetical: bool
    engine: str | None
    format: str | None
    granularity: str | None
    artifact: str | None
    artifact_sha256: str | None
    excluded_layers: list[int]

    @property
    def is_valid(self) -> bool:
        """Whether the engine can run it."""
        return self.status == "valid"

    @property
    def role(self) -> Role:
        """Return what it stands for in the decision."""
        if not self.is_valid:
            return Role.unsupported
        if self.kind == "bf16":
            return Role.baseline
        if self.excluded_layers and self.kind not in _FORMATS:
            return Role.layers_excluded
        return {
            "unit": Role.default_scales,
            "effective": Role.as_served,
            "online": Role.online,
            "format": Role.cache_format,
        }.get(self.kind, Role.calibrated)

    @property
    def facts(self) -> dict[str, str]:
        """Return what makes it this candidate, by name; two with equal facts are the same one."""
        if self.kind == "bf16":
            return {"precision": "bf16"}
        source = self.artifact_sha256[:16] if self.artifact_sha256 else self.artifact or ""
        layers = ", ".join(map(str, self.excluded_layers)) or "none"
        return {
            "precision": self.format or "unknown",
            "numerics": self.engine or "unknown",
            "granularity": self.granularity or "unknown",
            "scales": f"{self.kind} {source or (self.candidate if self.kind == 'swept' else '')}".strip(),
            "layers left out": layers,
        }

    @property
    def setup(self) -> str:
        """Return the facts in words."""
        if self.kind == "bf16":
            return "not quantized"
        grain = {"attn_head": "per head", "tensor": "per tensor", "token_head": "per token and head"}.get(
            self.granularity or "", "granularity unknown"
        )
        digest = f", sha256 {self.artifact_sha256[:12]}" if self.artifact_sha256 else ""
        scales = {
            "unit": "scales 1.0",
            "effective": "the scales that the engine used",
            "online": "scales chosen while serving",
            "swept": f"scales by the rule {plain(self.candidate, 40)}, made of the same traces",
            "fresh": "scales that just cover the same traces",
            "format": f"scales of {plain(self.artifact, 80)}{digest}" if self.artifact else "scales 1.0",
        }.get(self.kind, f"scales of {plain(self.artifact or self.candidate, 80)}{digest}")
        layers = f", layers {self.facts['layers left out']} in BF16" if self.excluded_layers else ""
        return f"{self.format}, {self.engine} numerics, {grain}, {scales}{layers}"


def candidates_of(run: Run, connection: RunConnection) -> list[Contender]:
    """Return the candidates of one run, in the order asked for."""
    return [Contender(run, connection, *row) for row in connection.execute(_CANDIDATES).fetchall()]


def contenders(
    runs: Sequence[tuple[Run, RunConnection]], *, same_conditions: bool
) -> tuple[dict[str, Contender], tuple[str, ...]]:
    """Return name → candidate in the order of the decision table, and what was left out as a repetition.

    same_conditions: whether the runs differ in nothing but candidates; equal ones then give equal numbers,
    and one stays. A name that several runs use is preceded by its run's.
    """
    found = [one for run, connection in runs for one in candidates_of(run, connection)]
    kept: list[Contender] = []
    repeated = []
    for one in found:
        twin = next((other for other in kept if same_conditions and _is_same(one, other)), None)
        if twin is None:
            kept.append(one)
        else:
            repeated.append(f"{plain(one.candidate)} of {one.run.path} is {plain(twin.candidate)}")
    kept.sort(key=lambda one: _ORDER.index(one.role))
    names = [one.candidate for one in kept]
    return {
        one.candidate if names.count(one.candidate) == 1 else f"{one.run.path.name}:{one.candidate}": one
        for one in kept
    }, tuple(repeated)


def named_baseline(name: str, table: dict[str, Contender]) -> str:
    """Return `name`. Raises ComparisonError: no row is called so, or it is invalid."""
    if name not in table:
        valid = ", ".join(plain(other) for other, found in table.items() if found.is_valid)
        raise ComparisonError(f"--baseline {plain(name)}: no such candidate; expected one of {valid}")
    if not table[name].is_valid:
        raise ComparisonError(f"--baseline {plain(name)} is invalid: {plain(table[name].reason or '', 300)}")
    return name


def rival(name: str, table: dict[str, Contender], baseline: str | None = None) -> str | None:
    """Return the row that `name` is compared with: the one that differs in the least, the simpler one.

    Layers left out: the same scales without that. Calibrated, online or as served: the default scales. Else
    BF16. baseline: a row that takes the place of all these.
    """
    one = table[name]
    if not one.is_valid or one.role is Role.baseline or name == baseline:
        return None
    if baseline is not None:
        return baseline
    others = {other: found for other, found in table.items() if other != name and found.is_valid}

    def first(role: Role) -> str | None:
        return next((other for other, found in others.items() if found.role is role), None)

    if one.role is Role.layers_excluded:
        whole = one.facts | {"layers left out": "none"}
        same_scales = next((other for other, found in others.items() if found.facts == whole), None)
        if same_scales is not None:
            return same_scales
    if one.kind != "unit" and (default := first(Role.default_scales)):
        return default
    return first(Role.baseline)


def changed_facts(one: Contender, other: Contender) -> tuple[str, ...]:
    """Return what differs from `other`, in words; against BF16 it is the whole quantization."""
    if other.kind == "bf16":
        return ("quantized at all",)
    return tuple(
        f"{what}: {value} instead of {other.facts.get(what, 'none')}"
        for what, value in one.facts.items()
        if value != other.facts.get(what)
    )


def _is_same(one: Contender, other: Contender) -> bool:
    return one.run is not other.run and one.is_valid and other.is_valid and one.facts == other.facts
