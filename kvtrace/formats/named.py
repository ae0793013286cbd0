"""The formats by name: all that are replayed, other names of theirs, and those that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.formats import (
    int4_per_token_head,
    lmdeploy,
    native,
    nvfp4,
    octave,
    per_token_head,
    static_fp8,
    turboquant,
    ultraquant_4bit,
)

if TYPE_CHECKING:
    from kvtrace.formats.format import CacheFormat

FORMATS: Final[dict[str, CacheFormat]] = {
    form.name: form
    for module in (
        native,
        static_fp8,
        per_token_head,
        int4_per_token_head,
        nvfp4,
        turboquant,
        ultraquant_4bit,
        octave,
        lmdeploy,
    )
    for form in module.FORMATS
}
"""By name, in the order of documents."""

_ALIASES: Final = {
    "fp8": "fp8_e4m3",
    "bf16": "auto",
    "bfloat16": "auto",
    "float16": "auto",
    "half": "auto",
    "fp8-per-token-head": "fp8_per_token_head",
    "int8-per-token-head": "int8_per_token_head",
}
"""Other names of the same, vLLM's and kvtrace's earlier ones."""

_REFUSED: Final = {
    "fp8_ds_mla": "it stores MLA latents, and traces hold K and V of heads",
    "nvfp4_ds_mla": "it stores MLA latents, and traces hold K and V of heads",
    "fp8_inc": "it belongs to a plug-in for Gaudi whose rules kvtrace does not know",
}


def why_refused(name: str) -> str | None:
    """Return why kvtrace does not replay a cache dtype, None where it does.

    >>> why_refused("nvfp4"), why_refused("my_plugin_q6")
    (None, 'unknown; vLLM may have it from a plug-in, whose rules kvtrace does not know')
    """
    if name.removesuffix("+q8") in FORMATS or name.removesuffix("+q8") in _ALIASES:
        return None
    return _REFUSED.get(name, "unknown; vLLM may have it from a plug-in, whose rules kvtrace does not know")


def find_format(name: str) -> CacheFormat:
    """Return the format of that name; NAME+q8: the same with Q in FP8.

    Raises InputError: unknown, or one that kvtrace does not replay.

    >>> find_format("fp8").name, find_format("nvfp4").slot_bytes(128)
    ('fp8_e4m3', 144)
    """
    reason = why_refused(name)
    if reason is not None:
        raise InputError(f"cache dtype {name[:60]!r}: {reason}; expected one of {', '.join(FORMATS)}")
    plain = name.removesuffix("+q8")
    found = FORMATS[_ALIASES.get(plain, plain)]
    return found if plain == name else found.with_query_in_fp8()
