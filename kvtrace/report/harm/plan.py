"""Layer plans: the fewest layers to keep native so that harm stays under a bound, and what that costs.

Harm is a sum over layers, and a layer that is kept adds none: the layers that harm most, taken one after the
other, leave less than any others of the same number. What errors do to one another from layer to layer is in
no replay: kept layers remove their own share, and no more is promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import ConfigDict

from kvtrace.errors import InputError
from kvtrace.formats import parse_format, vllm_flags
from kvtrace.plain_text import plain
from kvtrace.query import connect_to_judge, find_query, run_query
from kvtrace.report.cache_bytes import bytes_by_layer
from kvtrace.report.harm.model import Knowledge  # noqa: TC001 -- pydantic reads the annotations

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kvtrace.query import RunConnection
    from kvtrace.runs.open import Run

PLAN_SCHEMA_VERSION: Final = "1.0"
NUM_AT_EACH_END: Final = 2
"""Layers that vLLM keeps native at each end under its rotated formats (`TurboQuantConfig`)."""
Choice = Literal["by harm", "ends", "by clipping"]
_DOCUMENTED: Final = ConfigDict(use_attribute_docstrings=True)
_CLIPPED: Final = """
SELECT layer, max(clipped_frac) AS clipped_frac
FROM value_sums(chosen_cells)
WHERE candidate = $candidate
GROUP BY layer
"""
_LEFT_OUT: Final = "SELECT unnest(layers) FROM layers_left_out WHERE candidate = $candidate"
"""What the candidate leaves native as it is."""


@dataclass(frozen=True, slots=True)
class KeptLayers:
    """Some layers kept native, chosen by one rule."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    chosen: Choice
    """by harm: those that add most. ends: the first and the last two, as vLLM keeps under its rotated
    formats. by clipping: those with the head that clips most, as many as by harm."""
    layers: tuple[int, ...]
    harm: float
    """What the other layers add."""
    removed: float
    """Share of the candidate's harm, 0 to 1."""
    bytes_per_token: int | None
    """None: not known."""
    flags: str | None
    """With which vLLM serves it; None: no released vLLM does."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What keeping layers of one candidate native removes of its harm, and costs."""

    __pydantic_config__: ClassVar[ConfigDict] = _DOCUMENTED

    schema_version: str
    candidate: str
    knowledge: Knowledge
    harm: float
    bytes_per_token: int | None
    bound: float | None
    """None: so many layers were asked for."""
    plans: tuple[KeptLayers, ...]
    """By harm first."""


def fewest_layers(harm: Mapping[int, float], bound: float) -> tuple[int, ...]:
    """Return the fewest layers without which the others' harm adds up to at most `bound`, most harm first.

    harm: layer → what it adds, ≥ 0. bound: ≥ 0.

    >>> fewest_layers({0: 0.5, 1: 0.125, 2: 0.25}, bound=0.4)
    (0,)
    >>> fewest_layers({0: 0.5, 1: 0.125, 2: 0.25}, bound=0.0)
    (0, 2, 1)
    """
    ranked = _most_first(harm)
    kept = 0
    while kept < len(ranked) and sum(harm[layer] for layer in ranked[kept:]) > bound:
        kept += 1
    return tuple(ranked[:kept])


def plan_layers(
    run: Run, candidate: str | None = None, *, bound: float | None = None, keep: int | None = None
) -> LayerPlan:
    """Return the layers to keep native, beside vLLM's ends and those that clip most.

    candidate: by name; None: the only one that was given scales or is a format. bound: of harm. keep: so many
    layers; None of both: as many as vLLM keeps at the ends.
    Raises InputError: no such candidate, no harm in the run, or a bound or number that cannot be.
    """
    connection = connect_to_judge(run)
    name = _chosen(connection, run, candidate)
    rows = run_query(connection, find_query("harm_by_layer"), {"candidate": name}).records()
    harm = {row["layer"]: row["harm"] for row in rows if row["harm"] is not None}
    if not harm:
        raise InputError(
            f"{run.path}: holds no harm of {plain(name)}; replay a trace with queries "
            "(kvtrace capture run --queries probe)"
        )
    (total,) = run_query(connection, find_query("harm"), {"candidate": name}).records()
    if bound is not None:
        by_harm = fewest_layers(harm, bound)
    else:
        number = min(2 * NUM_AT_EACH_END, len(harm)) if keep is None else keep
        if number > len(harm):
            raise InputError(f"--keep {number}: the run has harm of {len(harm)} layers")
        by_harm = tuple(_most_first(harm)[:number])
    costs = _Costs(connection, run, name)
    chosen: list[tuple[Choice, tuple[int, ...]]] = [("by harm", by_harm), ("ends", _ends(harm))]
    if clipping := _by_clipping(connection, name, len(by_harm)):
        chosen.append(("by clipping", clipping))
    whole = sum(harm.values())
    return LayerPlan(
        schema_version=PLAN_SCHEMA_VERSION,
        candidate=name,
        knowledge=total["knowledge"],
        harm=whole,
        bytes_per_token=costs.bytes_with(()),
        bound=bound,
        plans=tuple(
            KeptLayers(
                chosen=how,
                layers=tuple(sorted(layers)),
                harm=sum(value for layer, value in harm.items() if layer not in layers),
                removed=sum(harm[layer] for layer in layers) / whole if whole else 0.0,
                bytes_per_token=costs.bytes_with(layers),
                flags=costs.flags_with(layers),
            )
            for how, layers in chosen
        ),
    )


class _Costs:
    """Bytes and flags of one candidate with some layers native."""

    def __init__(self, connection: RunConnection, run: Run, candidate: str) -> None:
        self._own = bytes_by_layer(connection, candidate)
        self._native = bytes_by_layer(connection, "bf16")
        rows = connection.execute("SELECT candidate, kind, format FROM candidates").fetchall()
        kind, form = next((kind, form) for name, kind, form in rows if name == candidate)
        is_format = kind in ("online", "format")
        self._form = parse_format(form if is_format else {"e5m2": "fp8_e5m2"}.get(form, "fp8"))
        self._num_layers = run.record.sources[0].model.num_layers
        self._left_out = connection.execute(_LEFT_OUT, {"candidate": candidate}).fetchall()

    def bytes_with(self, layers: Collection[int]) -> int | None:
        """Return bytes a token where these layers are native."""
        if self._own is None or self._native is None:
            return None
        return sum(self._native[layer] if layer in layers else size for layer, size in self._own.items())

    def flags_with(self, layers: Collection[int]) -> str | None:
        """Return vLLM's flags where these layers are native."""
        skip = {*layers, *(layer for (layer,) in self._left_out)}
        own = range(self._num_layers) if self._own is None else self._own
        return vllm_flags(self._form, own, self._num_layers, is_hybrid=False, skip=skip)


def _chosen(connection: RunConnection, run: Run, candidate: str | None) -> str:
    rows = connection.execute("SELECT candidate, kind, status FROM candidates ORDER BY ordinal").fetchall()
    known = [name for name, kind, status in rows if kind != "bf16" and status == "valid"]
    names = ", ".join(plain(name) for name in known)
    if candidate is None:
        asked = [name for name, kind, _ in rows if name in known and kind not in ("unit", "fresh")]
        if len(asked) != 1:
            raise InputError(f"{run.path}: holds {names}; say which to plan for with --candidate NAME")
        return str(asked[0])
    if candidate not in known:
        raise InputError(f"{run.path}: no valid candidate is called {plain(candidate)!r}; it holds {names}")
    return candidate


def _most_first(harm: Mapping[int, float]) -> list[int]:
    return sorted(harm, key=lambda layer: (-harm[layer], layer))


def _ends(harm: Mapping[int, float]) -> tuple[int, ...]:
    layers = sorted(harm)
    return tuple(sorted({*layers[:NUM_AT_EACH_END], *layers[-NUM_AT_EACH_END:]}))


def _by_clipping(connection: RunConnection, candidate: str, number: int) -> tuple[int, ...]:
    """Return as many layers with the largest share clipped in a head; none where nothing can clip."""
    rows: list[Any] = connection.execute(_CLIPPED, {"candidate": candidate}).fetchall()
    clipped = {layer: share for layer, share in rows if share}
    return tuple(_most_first(clipped)[:number])
