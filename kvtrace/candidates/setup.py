"""How an engine serves: the setup that a candidate's scales are applied by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvtrace.errors import InputError, InvalidCandidateError
from kvtrace.numerics import DEFAULT_ENGINE, find_engine, find_pair
from kvtrace.numerics.backends import why_not


@dataclass(frozen=True, slots=True)
class ServingSetup:
    """The numerics, format, backend, ranks and skipped layers that a cache is written with."""

    engine: str = DEFAULT_ENGINE
    """Numerics: a name of `kvtrace.numerics.ENGINES`."""
    format: str | None = None
    """FP8 format; None: the engine's default."""
    backend: str | None = None
    """Attention backend by the engine's own name; None: one that honours scales per head."""
    tp: int | None = None
    """Tensor-parallel ranks; None: as many as the artifact has, else 1."""
    skip_layers: tuple[int, ...] = ()
    """Layers whose cache stays unquantized."""

    @property
    def fp8_format(self) -> str:
        """Return the FP8 format's name."""
        return self.format or find_engine(self.engine).formats[0]

    def require_possible(self) -> None:
        """Raise InvalidCandidateError where the engine has no such format, or does not run the backend."""
        try:
            find_pair(self.engine, self.fp8_format)
            reason = why_not(self.engine, self.backend)
        except InputError as error:
            raise InvalidCandidateError(str(error), "impossible-setup") from error
        if reason is not None:
            raise InvalidCandidateError(reason, "impossible-setup")


DEFAULT_SETUP: Final = ServingSetup()
"""vLLM on CUDA."""
