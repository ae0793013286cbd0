"""The sums of a cache format that takes no scales, kept in the trace that they are of."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Final

from kvtrace.files.regular import read_regular
from kvtrace.files.replaced import replace_file
from kvtrace.formats import LayeredFormat
from kvtrace.profile.own_seal import is_own, own_seal
from kvtrace.trace.format import Record, seal, unseal
from kvtrace.trace.profile_format import PROFILE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Self

    from numpy.typing import NDArray

    from kvtrace.candidates.applied import AppliedScales
    from kvtrace.evaluation.sums import TensorSums
    from kvtrace.trace.reader import Trace

_PURPOSE: Final = "sums of a cache format"


class TensorFormatSums(Record):
    """One layer, K or V. All lists are [cell][kv_head]."""

    layer: int
    tensor: str
    num_out_of_range: list[list[int]]
    num_clipped: list[list[int]]
    num_flushed: list[list[int]]
    sum_sq_error: list[list[float]]
    sum_sq_clip_error: list[list[float]]

    @classmethod
    def of(cls, place: tuple[int, str], counts: NDArray[Any], squares: NDArray[Any]) -> Self:
        """Return the sums of [cell, kv_head, 3] and [cell, kv_head, 2]."""
        return cls(
            layer=place[0],
            tensor=place[1],
            num_out_of_range=counts[..., 0].tolist(),
            num_clipped=counts[..., 1].tolist(),
            num_flushed=counts[..., 2].tolist(),
            sum_sq_error=squares[..., 0].tolist(),
            sum_sq_clip_error=squares[..., 1].tolist(),
        )

    def fill(self, sums: TensorSums, number: int) -> None:
        """Put the sums in the place of candidate `number`."""
        errors = sums.errors
        errors.num_out_of_range[number] = self.num_out_of_range
        errors.num_clipped[number] = self.num_clipped
        errors.num_flushed[number] = self.num_flushed
        errors.sum_sq_error[number] = self.sum_sq_error
        errors.sum_sq_clip_error[number] = self.sum_sq_clip_error


class KeptSums(Record):
    """`profile/format-NAME.json`: what one format does to a trace."""

    schema_version: str = "1.0"
    trace_sha256: str
    codings: dict[str, str]
    """Layer and tensor → the coding there, in words."""
    tensors: tuple[TensorFormatSums, ...]
    seal: str | None = None
    """By the key of the user who summed: without it, the sums are made again."""

    @classmethod
    def of(cls, trace: Trace, applied: AppliedScales, tensors: Mapping[Any, TensorFormatSums]) -> Self:
        """Return what is kept of a candidate."""
        return cls(trace_sha256=trace.digest, codings=_in_words(applied), tensors=tuple(tensors.values()))

    def by_place(self) -> dict[tuple[int, str], TensorFormatSums]:
        """Return the sums by layer and tensor."""
        return {(one.layer, one.tensor): one for one in self.tensors}


def kept_sums(trace: Trace, applied: AppliedScales) -> KeptSums | None:
    """Return the sums that are kept of a candidate; None: none that can be believed, or of other layers."""
    path = _path(trace, applied)
    if path is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        kept = unseal(read_regular(path), KeptSums)
        is_of_it = (kept.trace_sha256, kept.codings) == (trace.digest, _in_words(applied))
        if is_of_it and is_own(kept, _PURPOSE):
            return kept
    return None


def keep(trace: Trace, applied: AppliedScales, sums: KeptSums) -> None:
    """Write the sums into the trace, where it has a profile and they depend on nothing else."""
    path = _path(trace, applied)
    if path is None or not path.parent.is_dir() or path.parent.is_symlink():
        return
    if os.access(path.parent, os.W_OK):
        sealed = sums.model_copy(update={"seal": own_seal(sums, _PURPOSE)})
        with contextlib.suppress(OSError):  # a full disk: they are made again the next time
            replace_file(path, seal(sealed) + "\n")


def _path(trace: Trace, applied: AppliedScales) -> Path | None:
    """Return where a candidate's sums are kept; None: they depend on scales."""
    cache = applied.candidate.cache
    if cache is None or cache.uses_scales:
        return None
    name = cache.name.replace("=", "-").replace(",", "-")
    if isinstance(cache, LayeredFormat):  # any length, and characters that no file's name has
        name = f"by-layer-{hashlib.sha256(cache.name.encode()).hexdigest()[:16]}"
    return trace.path / PROFILE_DIRECTORY / f"format-{name}.json"


def _in_words(applied: AppliedScales) -> dict[str, str]:
    return {f"{layer} {tensor}": repr(coding) for (layer, tensor), coding in sorted(applied.codings.items())}
