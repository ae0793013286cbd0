"""`VARIANT=FILE` on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtrace.errors import OutcomesError
from kvtrace.plain_text import plain

_MAX_VARIANT: Final = 64


@dataclass(frozen=True, slots=True)
class VariantFile:
    """One file and the variant that it is of."""

    variant: str
    path: Path


def parse_variant_file(argument: str) -> VariantFile:
    """Return what an argument means. Raises OutcomesError: nothing stands before or after the `=`.

    >>> parse_variant_file("fp8=runs/bench.json").variant
    'fp8'
    """
    variant, _, path = argument.partition("=")
    if not variant.strip() or not path:
        raise OutcomesError(
            f"{argument}: expected VARIANT=FILE, such as fp8=bench.json: the file does not say who served"
        )
    if len(variant.strip()) > _MAX_VARIANT:
        raise OutcomesError(f"{plain(argument)}: a variant has at most {_MAX_VARIANT} characters")
    return VariantFile(variant.strip(), Path(path))
