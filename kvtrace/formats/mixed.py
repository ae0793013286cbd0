"""K and V in different formats: k=bf16,v=fp8."""

from __future__ import annotations

from typing import Final

from kvtrace.errors import InputError
from kvtrace.formats.format import CacheFormat, Fact
from kvtrace.formats.named import FORMATS, find_format

_NOT_SERVED: Final = Fact("k-unlike-v", "no released vLLM serves K and V in different formats")


def parse_pair(text: str) -> CacheFormat:
    """Return a format by its name, or the pair that `k=NAME,v=NAME` asks for.

    Raises InputError: a name is unknown, or the pair is not complete.

    >>> parse_pair("k=bf16,v=nvfp4").slot_bytes(128)
    328
    """
    if "=" not in text:
        return find_format(text)
    parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if parts.keys() != {"k", "v"} or text.count(",") != 1:
        raise InputError(f"cache dtype {text[:60]!r}: expected one of {', '.join(FORMATS)}, or k=NAME,v=NAME")
    k, v = find_format(parts["k"]), find_format(parts["v"])
    if k == v:
        return k
    return CacheFormat(
        f"k={k.name},v={v.name}",
        k.k,
        v.v,
        product=k.product if k.product == v.product else f"{k.product}, {v.product}",
        keeps_boundary_layers=k.keeps_boundary_layers or v.keeps_boundary_layers,
        query_form=k.query_form,
        output_in_fp8=v.output_in_fp8,
        facts=(_NOT_SERVED, *dict.fromkeys((*k.facts, *v.facts))),
    )
