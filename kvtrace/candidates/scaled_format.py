"""format: a cache format that reads k_scale and v_scale, over an artifact's scales or over 1.0."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from kvtrace.candidates.artifact import ArtifactScales
from kvtrace.candidates.candidate import Candidate
from kvtrace.candidates.coded import coded_by
from kvtrace.candidates.setup import DEFAULT_SETUP, ServingSetup
from kvtrace.errors import InvalidCandidateError
from kvtrace.formats.static_fp8 import StaticFp8
from kvtrace.numerics import find_engine, find_format
from kvtrace.numerics.backends import find_backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.candidates.candidate import Asked
    from kvtrace.formats import CacheFormat
    from kvtrace.scales import ScaleArtifact
    from kvtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class FormatScales(Candidate):
    """A format over loaded scales."""

    cache: CacheFormat = field()
    serving: ServingSetup = DEFAULT_SETUP
    """Skipped layers, ranks and backend, and the engine that writes what is static FP8."""
    artifact: ScaleArtifact | None = None
    """None: every scale 1.0."""

    kind: ClassVar[str] = "format"

    @property
    def setup(self) -> ServingSetup | None:
        """Return how its static FP8 part is written; None: it has none."""
        return _static_setup(self.cache, self.serving)

    def scales_for(self, trace: Trace) -> AppliedScales:
        """Return the scales, and how each layer is coded.

        Raises InvalidCandidateError, as `ArtifactScales` does.
        """
        setup = self.setup or _row_setup(self.cache, self.serving)
        setup.require_possible()
        scales = None
        if self.artifact is not None:
            loaded = replace(setup, skip_layers=())
            scales = ArtifactScales(self.name, self.artifact, loaded).scales_for(trace)
        return coded_by(self, self.cache, setup, trace, scales)

    @classmethod
    def among(cls, asked: Asked) -> Iterator[Self]:
        """Yield each format over 1.0 and over every artifact, but the one that `unit` and artifacts have."""
        for name, cache in asked.formats.items():
            if not cache.uses_scales or _is_what_setup_has(cache, asked.setup):
                continue
            yield cls(name, cache, asked.setup)
            for artifact in asked.artifacts:
                yield cls(f"{name}:{artifact.name}", cache, asked.setup, artifact)


def _row_setup(cache: CacheFormat, serving: ServingSetup) -> ServingSetup:
    """Return the setup of a format without static FP8: its backend decides whether scales per head are taken.

    Raises InvalidCandidateError: it does not run on the backend asked for.
    """
    backends = dict.fromkeys(place.backend for place in cache.runs_on)
    asked = serving.backend and find_backend(serving.backend).name
    if asked and backends and asked not in backends:
        raise InvalidCandidateError(
            f"{cache.name} does not run on {asked}; it does on {', '.join(backends)}", "impossible-setup"
        )
    backend = asked or next(iter(backends), None)
    return ServingSetup(backend=backend, tp=serving.tp, skip_layers=serving.skip_layers)


def _static_setup(cache: CacheFormat, serving: ServingSetup) -> ServingSetup | None:
    """Return the setup of K or V in static FP8: the engine's own E4M3 where that is asked for."""
    static = [coding for coding in (cache.k, cache.v) if isinstance(coding, StaticFp8)]
    if not static:
        return None
    asked = static[0].fp8_format
    own = next(
        one
        for one in (serving.fp8_format, *find_engine(serving.engine).formats, asked)
        if find_format(one).vllm_dtype == find_format(asked).vllm_dtype
    )
    return replace(serving, format=own)


def _is_what_setup_has(cache: CacheFormat, setup: ServingSetup) -> bool:
    return (
        isinstance(cache.k, StaticFp8)
        and cache.k == cache.v
        and find_format(setup.fp8_format).vllm_dtype == find_format(cache.k.fp8_format).vllm_dtype
    )
