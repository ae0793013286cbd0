"""format: a cache format that reads k_scale and v_scale, over an artifact's scales or over 1.0."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.applied import scale_keys
from kvtrace.candidates.artifact import left_out, loaded_by
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.coded import coded_by, static_setup
from kvtrace.candidates.recipe import recipe_of
from kvtrace.candidates.setup import DEFAULT_SETUP, ServingSetup
from kvtrace.errors import InvalidCandidateError
from kvtrace.formats import CacheFormat, LayeredFormat
from kvtrace.formats.static_fp8 import StaticFp8
from kvtrace.numerics import find_format
from kvtrace.numerics.backends import find_backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.candidates.captured import ScaleKey
    from kvtrace.formats import AnyFormat
    from kvtrace.scales import ScaleArtifact
    from kvtrace.scales.resolved import EffectiveScale
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class FormatScales(Candidate):
    """A format, or formats by layer, over loaded scales."""

    cache: AnyFormat = field()
    serving: ServingSetup = DEFAULT_SETUP
    """Skipped layers, ranks and backend, and the engine that writes what is static FP8."""
    artifact: ScaleArtifact | None = None
    """None: every scale 1.0."""

    kind: ClassVar[str] = "format"

    @property
    def setup(self) -> ServingSetup | None:
        """Return how its static FP8 part is written, of two that of the wider range; None: it has none."""
        static = [one for form in self.cache.forms for one in (form.k, form.v) if isinstance(one, StaticFp8)]
        if not static:
            return None
        return static_setup(max(static, key=lambda one: one.limits.in_range), self.serving)

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return the scales, and how each layer is coded.

        Raises InvalidCandidateError, as `ArtifactScales` does.
        """
        setup = self.setup or _row_setup(self.cache, self.serving)
        setup.require_possible()
        if self.artifact is None:
            return coded_by(self, self.cache, setup, trace)
        scales = self._loaded(self.artifact, setup, trace)
        without = left_out(trace, scales)
        setup = replace(setup, skip_layers=tuple(sorted({*setup.skip_layers, *without})))
        return coded_by(self, self.cache, setup, trace, scales)

    def _loaded(
        self, artifact: ScaleArtifact, setup: ServingSetup, trace: Trace
    ) -> dict[ScaleKey, EffectiveScale]:
        """Return what the engine loads for each layer's format."""
        if isinstance(self.cache, LayeredFormat):
            # No released engine has such a cache: that it refuses the configuration is no fault of scales.
            artifact = replace(artifact, scheme=replace(artifact.scheme, refused=None))
        dtypes = {one.loads_as for form in self.cache.forms for one in (form.k, form.v)} - {None}
        is_fnuz = find_format(setup.fp8_format).is_fnuz
        of_dtype = {
            dtype: loaded_by(
                artifact, setup, trace, str(dtype), is_fnuz=is_fnuz and str(dtype).startswith("fp8")
            ).scales
            for dtype in dtypes
        }
        return {
            key: of_dtype[dtype][key]
            for key in scale_keys(trace)
            if (dtype := self.cache.in_layer(key[0]).coding(key[2]).loads_as) and key in of_dtype[dtype]
        }

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield each format over 1.0 and over every artifact, but the one that `unit` and artifacts have; and
        every artifact as its own map of layers says.
        """
        for name, cache in asked.formats.items():
            if not cache.uses_scales or _is_what_setup_has(cache, asked.setup):
                continue
            yield cls(name, cache, asked.setup)
            for artifact in asked.artifacts:
                yield cls(f"{name}:{artifact.name}", cache, asked.setup, artifact)
        for artifact in asked.artifacts:
            recipe = recipe_of(artifact)
            if recipe is not None and recipe not in asked.formats.values():
                yield cls(f"{artifact.name}:by-layer", recipe, asked.setup, artifact)


def _row_setup(cache: AnyFormat, serving: ServingSetup) -> ServingSetup:
    """Return the setup of a format without static FP8: its backend decides whether scales per head are taken.

    Raises InvalidCandidateError: it does not run on the backend asked for.
    """
    backends = dict.fromkeys(place.backend for form in cache.forms for place in form.runs_on)
    asked = serving.backend and find_backend(serving.backend).name
    if asked and backends and asked not in backends:
        raise InvalidCandidateError(
            f"{cache.name} does not run on {asked}; it does on {', '.join(backends)}", "impossible-setup"
        )
    backend = asked or next(iter(backends), None)
    return ServingSetup(backend=backend, tp=serving.tp, skip_layers=serving.skip_layers)


def _is_what_setup_has(cache: AnyFormat, setup: ServingSetup) -> bool:
    return (
        isinstance(cache, CacheFormat)
        and isinstance(cache.k, StaticFp8)
        and cache.k == cache.v
        and find_format(setup.fp8_format).vllm_dtype == cache.k.loads_as
    )
