"""The attention backends that kvtrace knows, by which numerics each writes its cache, and scales per head.

Source: vLLM 0.32, `vllm/v1/attention/backends/` (which cache-write operator each calls) and
`vllm/platforms/`; SGLang's documentation of `--attention-backend`. Left out are those that keep no K and V of
heads in FP8 with loaded scales: MLA, sparse and TurboQuant caches, encoders.
Source of what becomes of scales per head: vLLM 0.28 to 0.32, `AttentionBackend.validate_configuration`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvtrace.errors import InputError
from kvtrace.numerics.engines import find_engine

PerHead = Literal["honours", "collapses", "refuses"]
"""What a backend does with scales per head. collapses: the maximum over each rank's heads is used. refuses:
vLLM does not start; another product, or an older vLLM, collapses them."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One attention backend."""

    name: str
    engines: tuple[str, ...]
    """Numerics of `kvtrace.numerics.ENGINES` that can be its cache write."""
    per_head: PerHead
    aliases: tuple[str, ...] = ()
    """Names that the product has used for it before."""

    def refuses_per_head_on(self, engine: str) -> bool:
        """Return whether the product of some numerics does not start with it and scales per head."""
        return self.per_head == "refuses" and find_engine(engine).product == "vllm"


BACKENDS: Final = (
    Backend("FLASH_ATTN", ("vllm-cuda",), "honours", aliases=("FLASHATTENTION", "FLASH_ATTN_VLLM_V1")),
    Backend("FLASHINFER", ("vllm-cuda", "sglang"), "refuses"),
    Backend("FLEX_ATTENTION", ("vllm-cuda",), "refuses"),
    Backend("HPC_ATTN", ("vllm-cuda",), "refuses"),
    Backend("B12X", ("vllm-cuda",), "refuses"),
    Backend("TRITON_ATTN", ("vllm-triton",), "refuses"),
    Backend("FLASH_ATTN_DIFFKV", ("vllm-triton",), "honours"),
    Backend("TRITON_ATTN_DIFFKV", ("vllm-triton",), "refuses"),
    Backend("ROCM_SEGMENTED_ATTN", ("vllm-triton",), "refuses"),
    Backend("ROCM_ATTN", ("vllm-rocm",), "refuses"),
    Backend("ROCM_AITER_FA", ("vllm-rocm",), "refuses"),
    Backend("ROCM_AITER_UNIFIED_ATTN", ("vllm-rocm",), "refuses"),
    Backend("CPU_ATTN", ("vllm-cpu",), "collapses"),
    Backend("FA3", ("sglang",), "honours"),
    Backend("FA4", ("sglang",), "honours"),
    Backend("TRITON", ("sglang",), "collapses"),
    Backend("TORCH_NATIVE", ("sglang",), "collapses"),
)


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


def is_known(name: str) -> bool:
    """Return whether kvtrace knows a backend.

    >>> is_known("cpu-attn"), is_known("one of next year")
    (True, False)
    """
    return _known(name) is not None


def honours_per_head(name: str | None) -> bool:
    """Return whether a backend takes one scale per head: FlashAttention (3 and later) alone.

    None stands for a backend that does; one that kvtrace does not know does not.

    >>> honours_per_head("FlashAttention"), honours_per_head("FLASH_ATTN_MLA"), honours_per_head(None)
    (True, False, True)
    """
    found = None if name is None else _known(name)
    return name is None or (found is not None and found.per_head == "honours")


def another_takes_per_head(name: str | None) -> bool:
    """Return whether some backend beside this one takes scales per head; None or an unknown one: it may.

    >>> another_takes_per_head("flashinfer"), another_takes_per_head("CPU_ATTN"), another_takes_per_head(None)
    (True, False, True)
    """
    found = None if name is None else _known(name)
    return found is None or any(
        one.per_head == "honours" and set(one.engines) & set(found.engines) for one in BACKENDS
    )


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
    if found is None or found.per_head == "honours":
        return None
    if found.per_head == "refuses":
        return False
    return True if any(find_engine(engine).product == "vllm" for engine in found.engines) else None


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


def _known(name: str) -> Backend | None:
    return _BY_KEY.get(_key(name))


def _key(name: str) -> str:
    return name.upper().replace("_", "").replace("-", "")


_BY_KEY: Final = {_key(name): one for one in BACKENDS for name in (one.name, *one.aliases)}
