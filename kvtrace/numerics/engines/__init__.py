"""The engines whose FP8 cache write can be replayed, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.numerics.engines import sglang, vllm_cpu, vllm_cuda, vllm_rocm, vllm_triton
from kvtrace.numerics.formats import find_format

if TYPE_CHECKING:
    from kvtrace.numerics.engines.engine import Engine
    from kvtrace.numerics.formats import Fp8Format

ENGINES: Final[dict[str, Engine]] = {
    module.ENGINE.name: module.ENGINE for module in (vllm_cuda, vllm_triton, vllm_cpu, vllm_rocm, sglang)
}
DEFAULT_ENGINE: Final = vllm_cuda.ENGINE.name


def find_engine(name: str) -> Engine:
    """Return the engine called `name`. Raises InputError for any other name."""
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown; expected one of {', '.join(ENGINES)}")
    return ENGINES[name]


def find_pair(engine: str, fmt: str) -> tuple[Engine, Fp8Format]:
    """Return engine and format. Raises InputError: unknown, or the engine does not write that format."""
    found, found_format = find_engine(engine), find_format(fmt)
    if fmt not in found.formats:
        raise InputError(f"engine {engine} does not write {fmt}; it offers {', '.join(found.formats)}")
    return found, found_format
