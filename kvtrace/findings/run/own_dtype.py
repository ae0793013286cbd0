"""How to serve with a cache in the model's own dtype: the engine's default is no way to switch FP8 off.

vLLM resolves a cache dtype that nobody gave to FP8 where the checkpoint declares it, as those with scales do:
compressed-tensors' by `kv_cache_scheme`, ModelOpt's by `kv_cache_quant_algo`. A dtype given by name wins.
Source: vLLM 0.32, `resolve_kv_cache_dtype_string` and `Attention.__init__`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kvtrace.findings.artifact.per_head_collapsed import RULE as PER_HEAD_COLLAPSED
from kvtrace.numerics.backends import starts_per_head
from kvtrace.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.findings.run.case import Case, Subject
    from kvtrace.runs.record import SourceRecord

_CACHE_DTYPES: Final = ("bfloat16", "float16")
"""Of a model's dtypes those that vLLM takes by name (`CacheDType`); on the CPU, from 0.33 on, the model's own
alone."""
_ORIGINAL: Final = "from the original checkpoint, the one without KV scales, and without --kv-cache-dtype"
"""That one declares no FP8, so the default is the model's own dtype."""
_MOST_NAMED: Final = 3


def without_fp8(case: Case, subject: Subject) -> str:
    """Return how to serve so that no layer's cache is FP8, to stand after "serve".

    `with --kv-cache-dtype` and the dtype of the captured model; from the original checkpoint where vLLM takes
    no such dtype, or does not start with the subject's scales whatever the dtype. Sources that differ are
    named.
    """
    per_head = not subject.in_effect and _is_per_head(case, subject)
    sources: dict[str, list[str]] = defaultdict(list)
    for source in case.run.record.sources:
        sources[_way(source, per_head=per_head)].append(plain(source.name, 40))
    if len(sources) == 1:
        return next(iter(sources))
    return ", and ".join(f"{way} ({_some(names)})" for way, names in sources.items())


def _is_per_head(case: Case, subject: Subject) -> bool:
    """Return whether the artifact's scales are per head, though they may be applied as their maximum."""
    if subject.granularity == "attn_head":
        return True
    return any(row["id"] == PER_HEAD_COLLAPSED.id for row in case.stored_findings(subject.name))


def _way(source: SourceRecord, *, per_head: bool) -> str:
    """Return how to serve one source's model. per_head: with scales per head that its engine did not use."""
    dtype = source.model.dtype
    if dtype not in _CACHE_DTYPES:
        return _ORIGINAL
    flag = f"with --kv-cache-dtype {dtype}"
    if not per_head:
        return flag
    starts = [starts_per_head(backend) for backend in source.attention_backends]
    if False in starts:
        return _ORIGINAL
    if starts and all(starts):
        return flag
    return f"{flag}, or, where vLLM refuses to start with scales per head, {_ORIGINAL}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
