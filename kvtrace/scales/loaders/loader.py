"""What loads scales: the products whose rules kvtrace knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvtrace.errors import InvalidCandidateError
from kvtrace.numerics import ENGINES

LoaderName = Literal["vllm", "sglang", "tensorrt-llm"]


@dataclass(frozen=True, slots=True)
class Loader:
    """One product that loads scales, and how it takes a file of scales per rank."""

    name: LoaderName
    title: str
    """As its makers write it."""
    defaults_on_error: bool = False
    """A file that it cannot use makes every scale 1.0 after a line in its log; others do not start."""
    needs_model_type: bool = False
    """It refuses a file of scales that does not name the model's type."""
    unread_for: tuple[str, ...] = ()
    """Cache dtypes for which it does not open a file of scales."""


VLLM: Final = Loader("vllm", "vLLM")
SGLANG: Final = Loader(
    "sglang", "SGLang", defaults_on_error=True, needs_model_type=True, unread_for=("fp8_e5m2",)
)
TENSORRT_LLM: Final = Loader("tensorrt-llm", "TensorRT-LLM")

LOADERS: Final[dict[str, Loader]] = {one.name: one for one in (VLLM, SGLANG, TENSORRT_LLM)}


def find_loader(name: str) -> Loader:
    """Return a loader by its name, or the one of the product that some numerics belong to.

    name: of `LOADERS` or of `kvtrace.numerics.ENGINES`. Raises InvalidCandidateError: no rules are known.

    >>> find_loader("vllm-cuda").title, find_loader("sglang").defaults_on_error
    ('vLLM', True)
    """
    found = LOADERS.get(ENGINES[name].product if name in ENGINES else name)
    if found is None:
        raise InvalidCandidateError(
            f"no rules are known for engine {name!r}; there are {', '.join(LOADERS)}", "unknown-engine"
        )
    return found
