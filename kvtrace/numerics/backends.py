"""The attention backends that kvtrace knows, and by which numerics each writes its cache.

Source: vLLM 0.32, `vllm/v1/attention/backends/` (which cache-write operator each calls) and
`vllm/platforms/`; SGLang's documentation of `--attention-backend`. Left out are those that keep no K and V of
heads in FP8 with loaded scales: MLA, sparse and TurboQuant caches, encoders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvtrace.errors import InputError


@dataclass(frozen=True, slots=True)
class Backend:
    """One attention backend. engines: numerics of `kvtrace.numerics.ENGINES` that can be its cache write."""

    name: str
    engines: tuple[str, ...]


BACKENDS: Final = (
    Backend("FLASH_ATTN", ("vllm-cuda",)),
    Backend("FLASHINFER", ("vllm-cuda", "sglang")),
    Backend("FLEX_ATTENTION", ("vllm-cuda",)),
    Backend("HPC_ATTN", ("vllm-cuda",)),
    Backend("B12X", ("vllm-cuda",)),
    Backend("TRITON_ATTN", ("vllm-triton",)),
    Backend("FLASH_ATTN_DIFFKV", ("vllm-triton",)),
    Backend("TRITON_ATTN_DIFFKV", ("vllm-triton",)),
    Backend("ROCM_SEGMENTED_ATTN", ("vllm-triton",)),
    Backend("ROCM_ATTN", ("vllm-rocm",)),
    Backend("ROCM_AITER_FA", ("vllm-rocm",)),
    Backend("ROCM_AITER_UNIFIED_ATTN", ("vllm-rocm",)),
    Backend("CPU_ATTN", ("vllm-cpu",)),
    Backend("FA3", ("sglang",)),
    Backend("FA4", ("sglang",)),
    Backend("TRITON", ("sglang",)),
    Backend("TORCH_NATIVE", ("sglang",)),
)
REFUSING_PER_HEAD: Final = ("vllm-cuda", "vllm-triton", "vllm-rocm")
"""Engines that refuse to start where scales per head meet a backend without them; vllm-cpu takes the maximum.
Source: vLLM 0.28 to 0.32, `AttentionBackend.validate_configuration`."""
_ALSO_CALLED: Final = {"FLASHATTENTION": "FLASHATTN", "FLASHATTNVLLMV1": "FLASHATTN"}
"""Names that vLLM has used before, without `_`."""
_BY_KEY: Final = {one.name.replace("_", ""): one for one in BACKENDS}


def find_backend(name: str) -> Backend:
    """Return a backend by the engine's own name; case, `-` and `_` do not matter. Raises InputError: unknown.

    >>> find_backend("flash-attn").engines
    ('vllm-cuda',)
    """
    found = _known(name)
    if found is None:
        known = ", ".join(one.name for one in BACKENDS)
        raise InputError(
            f"--backend {name[:60]!r}: unknown; expected one of {known}. Leave it out for one that "
            "honours scales per head"
        )
    return found


def starts_per_head(name: str) -> bool | None:
    """Return whether vLLM starts a backend with scales per head, whatever the cache dtype.

    None: it depends, as with FlashAttention, which takes them from version 3 on, or is not known.
    Source: vLLM 0.32: `Attention.__init__` asks for them where `kv_cache_scheme` has the strategy attn_head.

    >>> starts_per_head("cpu-attn"), starts_per_head("flashinfer")
    (True, False)
    >>> starts_per_head("flash-attn"), starts_per_head("one of next year")
    (None, None)
    """
    found = _known(name)
    if found is None or found.name.startswith("FLASH_ATTN"):
        return None
    if found.engines == ("vllm-cpu",):
        return True
    return False if any(engine in REFUSING_PER_HEAD for engine in found.engines) else None


def _known(name: str) -> Backend | None:
    key = name.upper().replace("_", "").replace("-", "")
    return _BY_KEY.get(_ALSO_CALLED.get(key, key))


def why_not(engine: str, backend: str | None) -> str | None:
    """Return why an engine cannot run a backend, None where it can or where none is asked for.

    engine: a name of `kvtrace.numerics.ENGINES`. Raises InputError: an unknown backend.
    """
    if backend is None:
        return None
    found = find_backend(backend)
    if engine in found.engines:
        return None
    return (
        f"backend {found.name} does not run on engine {engine}: its cache is written as "
        f"{' or '.join(found.engines)} does; give that with --engine, or another --backend"
    )
