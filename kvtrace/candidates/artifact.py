"""artifact: the scales of a checkpoint or file, as an engine would load and apply them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import scale_keys, static_scales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.setup import DEFAULT_SETUP
from kvtrace.errors import InputError, InvalidCandidateError
from kvtrace.numerics import find_pair
from kvtrace.numerics.backends import find_backend
from kvtrace.scales import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.candidates.setup import ServingSetup
    from kvtrace.findings.artifact.weights import WeightsComparison
    from kvtrace.scales import ResolvedScales, ScaleArtifact
    from kvtrace.scales.resolved import EffectiveScale
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class ArtifactScales(Candidate):
    """An artifact under one setup."""

    artifact: ScaleArtifact = field()
    setup: ServingSetup = DEFAULT_SETUP
    weights: WeightsComparison | None = None
    """Its checkpoint against another, for the audit; None: not asked."""

    kind: ClassVar[str] = "artifact"
    is_given: ClassVar[bool] = True

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return what the engine makes of the artifact.

        Raises InvalidCandidateError: it belongs to another model or the engine refuses it, too.
        """
        self.setup.require_possible()
        _, fmt = find_pair(self.setup.engine, self.setup.fp8_format)
        resolved = loaded_by(self.artifact, self.setup, trace, fmt.vllm_dtype, is_fnuz=fmt.is_fnuz)
        found = {key: resolved.scales.get(key) for key in scale_keys(trace)}
        known = {key: scale for key, scale in found.items() if scale is not None}
        without = left_out(trace, known)
        used = {key: scale for key, scale in known.items() if key[0] not in without}
        return static_scales(
            self,
            trace,
            {key: used[key].value if key in used else None for key in found},
            {key: used[key].origin if key in used else "unquantized" for key in found},
            granularity=resolved.granularity,
            note=resolved.note,
        )

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield one per artifact, each compared with `against`.

        Raises ArtifactError: one of the two holds no weights. InputError: there is no artifact to compare, or
        nothing at `against`.
        """
        if asked.against is not None:
            _require_two(asked, asked.against)
        for artifact in asked.artifacts:
            weights = _compared(artifact, asked.against) if asked.against is not None else None
            yield cls(artifact.name, artifact, asked.setup, weights)


def loaded_by(
    artifact: ScaleArtifact, setup: ServingSetup, trace: Trace, kv_cache_dtype: str, *, is_fnuz: bool = False
) -> ResolvedScales:
    """Return the scales that a setup's engine loads for a trace's model and a cache dtype.

    Raises InvalidCandidateError: it belongs to another model or the engine refuses it.
    """
    model = trace.record.model
    cache = artifact.model.cache.joined(trace.cache_layers)
    heads = {layer: cache.heads(layer, model.num_kv_heads) for layer in range(model.num_layers)}
    resolved = resolve(
        artifact,
        num_layers=model.num_layers,
        kv_heads_per_layer=heads,
        loader=setup.engine,
        backend=setup.backend,
        tp=setup.tp,
        kv_cache_dtype=kv_cache_dtype,
        fnuz=is_fnuz,
        cache=cache,
    )
    resolved.require_valid()
    if (
        resolved.notes_of("collapsed")
        and setup.backend
        and find_backend(setup.backend).refuses_per_head_on(setup.engine)
    ):
        raise InvalidCandidateError(
            f"backend {setup.backend} takes no scale per head, and {artifact.name} has them: vLLM "
            "refuses to start with both on a GPU; give another --backend, or scales per tensor",
            "per-head-refused",
        )
    return resolved


def left_out(trace: Trace, scales: Mapping[ScaleKey, EffectiveScale]) -> set[int]:
    """Return the layers that the captured engine kept out of its FP8 cache and the artifact has no scale for.

    They are served so on purpose: 1.0 is not what they would get.
    """
    if trace.cache_kind != "static_fp8":
        return set()
    kept = {n for n, layer in trace.layers.items() if layer.cache_kind == "unquantized"}
    return kept - {key[0] for key, scale in scales.items() if not scale.is_default}


def _require_two(asked: Asked, against: Path) -> None:
    from kvtrace.findings.artifact.weights import require_existing

    require_existing(against)
    if not asked.artifacts:
        raise InputError(f"--against {against}: nothing to compare with it; give a checkpoint with --scales")


def _compared(artifact: ScaleArtifact, against: Path) -> WeightsComparison:
    from kvtrace.findings.artifact.weights import compare_weights

    return compare_weights(artifact.path, against)
